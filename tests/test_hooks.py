"""Patches are taken back whole; code that waits for an import runs once, before anybody sees the module."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from nbcache.torch_bridge.hooks import ImportHook, Patches


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
