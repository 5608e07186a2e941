"""Keys do not depend on what was imported before torch: without torch."""

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from nbcache.torch_bridge.events import settle_import_order as settle


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """Stand in for `sys.modules`; the real one comes back."""
    standing_in: dict[str, ModuleType] = {}
    monkeypatch.setattr(sys, "modules", standing_in)
    return standing_in  # type: ignore[return-value]


def module(name: str, **names: object) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(names)
    return made


def test_modules_that_know_torch_come_after_it_and_the_others_stay(modules: dict[str, ModuleType]) -> None:
    torch = module("torch")
    modules["__main__"] = modules["__mp_main__"] = module("__main__", torch=torch)
    modules["mine"] = module("mine", torch=torch)
    modules["other"] = module("other", torch="another torch")
    modules["torch"] = torch
    modules["between"] = module("between", torch=torch)
    modules["torch._utils"] = module("torch._utils", torch=torch)
    same = dict(modules)

    assert settle(torch) == ["__mp_main__", "mine", "between"]
    order = ["__main__", "other", "torch", "torch._utils", "__mp_main__", "mine", "between"]
    assert list(modules) == order
    assert modules == same
    assert settle(torch) == []


def test_a_lazy_module_is_not_woken_up(modules: dict[str, ModuleType]) -> None:
    class Lazy(ModuleType):
        def __getattr__(self, name: str) -> object:
            pytest.fail(f"asked for {name}")

    modules["lazy"], modules["none"], modules["torch"] = Lazy("lazy"), None, module("torch")  # type: ignore[assignment]
    assert settle(modules["torch"]) == []
