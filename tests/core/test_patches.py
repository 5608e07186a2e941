"""Patches are taken back whole; code that waits for an import runs once, before anybody sees the module."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nbcache.core.patches import ImportHook, Intended, Patches


class Owner:
    @staticmethod
    def static() -> str:
        return "original"

    @classmethod
    def of_class(cls) -> str:
        return cls.__name__


class Child(Owner):
    pass


def test_restoring_leaves_descriptors_and_inherited_names_as_they_were() -> None:
    before = {owner: dict(vars(owner)) for owner in (Owner, Child)}
    patches = Patches()
    patches.set(Owner, "static", staticmethod(lambda: "patched"))
    patches.set(Owner, "of_class", classmethod(lambda cls: "patched"))
    patches.set(Child, "static", staticmethod(lambda: "child's own"))
    assert (Owner.static(), Child.of_class(), Child.static()) == ("patched", "patched", "child's own")

    patches.restore()

    assert {owner: dict(vars(owner)) for owner in (Owner, Child)} == before


def test_what_somebody_else_patched_over_ours_stays() -> None:
    module = types.SimpleNamespace(name="original")
    patches = Patches()
    patches.set(module, "name", "ours")
    module.name = "theirs"

    patches.restore()

    assert module.name == "theirs"


# --- hooks ----------------------------------------------------------------------------------------


class Faults:
    """Patches, and what they tell of faults."""

    def __init__(self) -> None:
        self.told: list[Exception] = []
        self.patches = Patches(self.told.append)


def test_a_hook_that_somebody_else_wrapped_only_calls_the_original_after_restoring() -> None:
    class Owner:
        def value(self) -> int:
            return 1

    patches, calls = Patches(), []

    def stand_in(original: Any, self: Owner) -> Any:
        calls.append(1)
        return original(self)

    patches.hook(Owner, "value", stand_in)
    ours = Owner.value
    Owner.value = lambda self: ours(self) + 1  # type: ignore[method-assign]
    patches.restore()
    assert Owner().value() == 2 and not calls


@pytest.mark.parametrize("is_set", [False, True])
def test_an_interrupt_while_an_attribute_is_replaced_leaves_nothing_in_place(is_set: bool) -> None:
    class Kind(type):
        interrupts = True

        def __setattr__(cls, name: str, value: Any) -> None:
            interrupts, Kind.interrupts = Kind.interrupts, False
            if is_set or not interrupts:
                super().__setattr__(name, value)
            if interrupts:
                raise KeyboardInterrupt

    class Owner(metaclass=Kind):
        def value(self) -> int:
            return 1

    before, patches = Owner.value, Patches()
    with pytest.raises(KeyboardInterrupt):
        patches.set(Owner, "value", None)
    patches.restore()
    assert Owner.value is before


def test_a_hook_that_fails_is_as_if_it_were_not_there_and_says_so_once() -> None:
    faults, calls = Faults(), []
    module = types.SimpleNamespace(double=lambda number: calls.append(number) or 2 * number)

    def before(original: Callable[..., int], number: int) -> int:
        raise RuntimeError("before")

    def after(original: Callable[..., int], number: int) -> int:
        original(number)
        raise RuntimeError("after")

    for stand_in in (before, after):
        faults.patches.off = False
        faults.patches.hook(module, "double", stand_in)
        assert [module.double(number) for number in (1, 2)] == [2, 4]
        faults.patches.restore()
    assert calls == [1, 2, 1, 2]
    assert [str(each) for each in faults.told] == ["before", "after"]


def test_what_the_original_raises_or_a_hook_intends_passes_and_is_no_fault() -> None:
    faults = Faults()
    module = types.SimpleNamespace(divide=lambda a, b: a / b)

    def divide(original: Callable[..., float], a: float, b: float) -> float:
        if a < 0:
            raise Intended
        try:
            return original(a, b)
        finally:
            if b == 0:
                raise RuntimeError("while the original's error is under way")

    faults.patches.hook(module, "divide", divide)

    assert module.divide(1, 2) == 0.5
    with pytest.raises(Intended):
        module.divide(-1, 2)
    assert faults.told == []
    with pytest.raises(ZeroDivisionError):
        module.divide(1, 0)
    assert len(faults.told) == 1 and faults.patches.off


def fails_at_three(original: Callable[..., Iterator[int]]) -> Iterator[int]:
    for number in original():
        if number == 3:
            raise RuntimeError("three")
        yield number


def fails_after_three(original: Callable[..., Iterator[int]]) -> Iterator[int]:
    yield from (number for number in original() if number < 3)
    raise RuntimeError("after the last")


@pytest.mark.parametrize(("stand_in", "numbers"), [(fails_at_three, range(5)), (fails_after_three, range(3))])
def test_a_failing_hook_over_an_iterator_loses_nothing_but_what_it_has_passed_over(
    stand_in: Any, numbers: range
) -> None:
    faults = Faults()
    module = types.SimpleNamespace(count=lambda: iter(range(5)))

    faults.patches.hook(module, "count", stand_in)

    assert [*module.count()] == [*numbers]
    assert [*module.count()] == [0, 1, 2, 3, 4]
    assert len(faults.told) == 1


@pytest.mark.parametrize("takes", ["a", "b …", "a c …", "a b c …"])
def test_a_function_that_takes_other_arguments_is_not_hooked(takes: str) -> None:
    module = types.SimpleNamespace(f=lambda a, b: None)
    before = module.f

    with pytest.raises(TypeError, match="f takes"):
        Patches(places={"f": takes}).hook(module, "f", lambda original, *args: None)
    assert module.f is before


# --- imports --------------------------------------------------------------------------------------


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "nbcache_sample.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nbcache_sample", raising=False)
    return "nbcache_sample"


def test_an_action_runs_once_when_its_module_is_imported_and_before_the_importer_goes_on(sample: str) -> None:
    seen: list[int] = []

    def act(module: types.ModuleType) -> None:
        seen.append(module.value)
        module.value = 2

    hook = ImportHook({sample: act})
    hook.install()
    try:
        import nbcache_sample
    finally:
        hook.uninstall()

    assert nbcache_sample.value == 2 and seen == [1]
    assert "exec_module" not in vars(nbcache_sample.__spec__.loader)
    assert hook not in sys.meta_path


def test_an_action_runs_at_once_where_the_module_is_there(sample: str) -> None:
    __import__(sample)
    seen: list[str] = []
    hook = ImportHook({sample: lambda module: seen.append(module.__name__)})
    hook.install()
    hook.uninstall()

    assert seen == [sample]


def test_an_import_that_fails_runs_no_action_and_can_be_tried_again(tmp_path: Path, sample: str) -> None:
    file = tmp_path / "nbcache_sample.py"
    file.write_text("raise RuntimeError('not yet')\n")
    seen: list[int] = []
    hook = ImportHook({sample: lambda module: seen.append(module.value)})
    hook.install()
    try:
        with pytest.raises(RuntimeError, match="not yet"):
            __import__(sample)
        assert seen == []
        file.write_text("value = 3  # longer, so that the stale bytecode is seen as stale\n")
        __import__(sample)
    finally:
        hook.uninstall()

    assert seen == [3]
