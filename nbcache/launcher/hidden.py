"""Modules that are imported ahead, and of which nobody knows until they are imported.

In a forked kernel `sys.modules` holds what an ordinary kernel has. What else the nursery has imported is put
there when a cell, or a library, imports it: at once, and the same module as ever.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_WHOLE = "torch"
"""With it comes everything: its modules refer to most of the others."""


def hidable(modules: Mapping[str, ModuleType]) -> dict[str, ModuleType]:
    """Return those that can be found again: not what libraries put into `sys.modules` by hand.

    Of a package that can be, everything can: it is shown with the package.
    """
    modules = {name: module for name, module in modules.items() if name != "__mp_main__"}
    packages = {name for name, module in modules.items() if getattr(module, "__spec__", None) is not None}
    return {
        name: module
        for name, module in modules.items()
        if name in packages or name.partition(".")[0] in packages
    }


class HiddenModules(MetaPathFinder):
    """Finds the modules that are hidden, first of all finders; `shown` is called when torch is imported.

    `first_changed` returns a file that is not any more what was imported, as after `%pip install` in a cell.
    """

    def __init__(
        self,
        modules: Mapping[str, ModuleType],
        shown: Callable[[], object],
        first_changed: Callable[[Iterable[str]], str | None] = lambda paths: None,
    ) -> None:
        self._modules = dict(modules)
        self._specs = {name: getattr(module, "__spec__", None) for name, module in modules.items()}
        self._shown = shown
        self._first_changed = first_changed
        self._replaced: str | None = None
        """A changed file of what was imported anew since, and torch has as it was."""

    def hide(self) -> None:
        """Take the modules out of `sys.modules`."""
        for name in self._modules:
            sys.modules.pop(name, None)
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return what a hidden module is found by; None where it is not hidden, or another would be found."""
        known = self._specs[fullname] if fullname in self._modules else None
        if known is None:
            return None
        if known.has_location and "." not in fullname:
            found = PathFinder.find_spec(fullname)
            if found is None or found.origin != known.origin:
                self._refuse(fullname, None if found is None else found.origin)
                return None
            if fullname != _WHOLE and not self._is_compiled(fullname) and (path := self._changed(fullname)):
                self._replaced = path
                self._refuse(fullname, known.origin)
                return None
        is_package = known.submodule_search_locations is not None
        spec = ModuleSpec(fullname, _Loader(self), origin=known.origin, is_package=is_package)
        spec.submodule_search_locations = known.submodule_search_locations
        spec.has_location = known.has_location
        return spec

    def _refuse(self, name: str, other: str | None) -> None:
        """Let Python import another module of this name, which `sys.path` has now."""
        if name == _WHOLE:
            raise ImportError(
                f"this kernel was started with torch imported, and sys.path has another one now ({other}): "
                "start a kernel that is not of nbcache's, or undo the change of sys.path",
                name=name,
            )
        for each in self._family(name):
            self._modules.pop(each, None)

    def module(self, name: str) -> ModuleType:
        """Return a module that is hidden; ImportError where its files are others by now."""
        if "." not in name and (changed := self._changed(name)):
            raise ImportError(
                f"this kernel was started with {name} imported, and {changed} has changed since: "
                "restart the kernel to use what is installed now",
                name=name,
            )
        return self._modules[name]

    def show(self, name: str) -> None:
        """Put a module, and all below it, where Python looks for what is imported."""
        self._modules[name].__spec__ = self._specs[name]  # Python has set that by which it was found
        self._show(self._modules if name == _WHOLE else self._family(name))
        if name == _WHOLE:
            sys.meta_path.remove(self)
            self._shown()

    def _changed(self, name: str) -> str | None:
        """Return a file, of all that comes with a module, that is not any more what was imported."""
        if name == _WHOLE and self._replaced is not None:
            return self._replaced
        shown = self._modules if name == _WHOLE else self._family(name)
        paths = (getattr(self._modules[each], "__file__", None) for each in shown)
        return self._first_changed(path for path in paths if path)

    def _is_compiled(self, name: str) -> bool:
        """Tell whether a package has parts that a process can load but once."""
        paths = (getattr(self._modules[each], "__file__", None) for each in self._family(name))
        return any(path and path.endswith(".so") for path in paths)

    def _family(self, name: str) -> list[str]:
        return [each for each in self._modules if each == name or each.startswith(f"{name}.")]

    def _show(self, names: Iterable[str]) -> None:
        shown = list(names)
        for name in shown:
            sys.modules[name] = self._modules.pop(name)
        if "multiprocessing" in shown:
            sys.modules["__mp_main__"] = sys.modules["__main__"]  # as it does when it is imported
        for finder in list(sys.meta_path):  # such as nbcache's, which waits for modules of torch
            if (imported_ahead := getattr(finder, "imported_ahead", None)) is not None:
                imported_ahead(shown)


class _Loader(Loader):
    """Loads one hidden module: of its own, as other finders, such as nbcache's, have a loader do more."""

    def __init__(self, hidden: HiddenModules) -> None:
        self._hidden = hidden

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module."""
        return self._hidden.module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Show it, and all below it."""
        name = module.__spec__.name if module.__spec__ is not None else module.__name__
        self._hidden.show(name)
