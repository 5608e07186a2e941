"""Patches that can be taken back, and code that runs when a module is imported."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType, ModuleType
from typing import Any

__all__ = ["ImportHook", "Patches"]

_ABSENT = object()


class Patches:
    """Replaces attributes and remembers what was there."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set `owner.name`, a class's or module's own attribute, until `restore`."""
        before = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)
        ours = vars(owner).get(name, _ABSENT)

        def undo() -> None:
            if vars(owner).get(name, _ABSENT) is not ours:
                return  # somebody has patched over ours: taking theirs out would be worse
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        self._undo.append(undo)

    def undo(self, action: Callable[[], None]) -> None:
        """Have `action` done by `restore`, too."""
        self._undo.append(action)

    def restore(self) -> None:
        """Put back what was there, newest first."""
        while self._undo:
            self._undo.pop()()


class ImportHook(importlib.abc.MetaPathFinder):
    """Calls a function after a module has been imported, on the thread that imports it.

    A module in `around` is executed within that context.
    The function runs once: at once where the module is there already, otherwise as the last part
    of the module's own execution, so that nobody sees the module without it.
    """

    def __init__(
        self,
        actions: Mapping[str, Callable[[ModuleType], None]],
        around: Mapping[str, Callable[[], AbstractContextManager[None]]] = MappingProxyType({}),
    ) -> None:
        self._actions = dict(actions)
        self._around = dict(around)

    def install(self) -> None:
        """Begin to watch imports."""
        for name in list(self._actions):
            module = sys.modules.get(name)
            spec = getattr(module, "__spec__", None)
            if module is not None and not getattr(spec, "_initializing", False):
                self._actions.pop(name)(module)
        sys.meta_path.insert(0, self)

    def uninstall(self) -> None:
        """Stop watching."""
        self._actions.clear()
        self._around.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find the module as everybody else would, and have our action run after its loader."""
        if fullname not in self._actions and fullname not in self._around:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: importlib.machinery.ModuleSpec | None = find(fullname, path, target)
            if spec is not None:
                self._follow(spec, fullname)
                return spec
        return None

    def _follow(self, spec: importlib.machinery.ModuleSpec, name: str) -> None:
        loader = spec.loader
        execute = getattr(loader, "exec_module", None)
        if loader is None or execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # ours, an attribute of this one loader: its class's own is back
            with self._around.pop(name, nullcontext)():
                execute(module)
            if action := self._actions.pop(name, None):
                action(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
