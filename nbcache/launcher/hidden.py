"""Modules that the nursery has imported ahead: it checks their files, and kernels hide them until imported.

In a forked kernel, `sys.modules` has only the modules of an ordinary kernel. When a cell or a library imports
another module of the nursery, the module is put there.
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TypeAlias

_WHOLE = "torch"
"""The import of torch shows all hidden modules, as its modules refer to most others."""
_OF_MODULES = (".py", ".pyc", ".so")
_OF_SITES = ("site-packages", "dist-packages")
_OF_PACKAGES = (".pth", ".dist-info", ".egg-info")
"""Ends of other names that matter in `_OF_SITES`: Python runs such files, or libraries look for them."""
Status: TypeAlias = tuple[int, int]
"""A file's time of change in nanoseconds (`st_ctime_ns`), and its inode number."""


def hidable(modules: Mapping[str, ModuleType]) -> dict[str, ModuleType]:
    """Return the modules that have a spec, unlike those that libraries put into `sys.modules` by hand.

    If a package has a spec, return all of its modules: they are shown with it.
    """
    packages = {name for name, module in modules.items() if getattr(module, "__spec__", None) is not None}
    return {
        name: module
        for name, module in modules.items()
        if name != "__mp_main__" and (name in packages or name.partition(".")[0] in packages)
    }


class HiddenModules(MetaPathFinder):
    """Finds the hidden modules before all other finders do, and calls `shown` when torch is imported.

    `first_change` returns a file that has changed since its import, such as by `%pip install` in a cell.
    """

    def __init__(
        self,
        modules: Mapping[str, ModuleType],
        shown: Callable[[], object],
        first_change: Callable[[Iterable[str]], str | None] = lambda paths: None,
    ) -> None:
        self._modules = dict(modules)
        self._specs = {name: getattr(module, "__spec__", None) for name, module in modules.items()}
        self._shown = shown
        self._first_change = first_change
        self._replaced: str | None = None
        """A changed file of a module that was imported again, while torch still refers to the old module."""

    def hide(self) -> None:
        for name in self._modules:
            sys.modules.pop(name, None)
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a hidden module; None if it is not hidden, or Python would find another one."""
        own_spec = self._specs[fullname] if fullname in self._modules else None
        if own_spec is None:
            return None
        if own_spec.has_location and "." not in fullname:
            spec = PathFinder.find_spec(fullname)
            if spec is None or spec.origin != own_spec.origin:
                self._refuse(fullname, None if spec is None else spec.origin)
                return None
            # A process can load the compiled parts of a package only once.
            is_compiled = any(file.endswith(".so") for file in self._files(fullname))
            if fullname != _WHOLE and not is_compiled and (changed := self._change_in(fullname)):
                self._replaced = changed
                self._refuse(fullname, own_spec.origin)
                return None
        is_package = own_spec.submodule_search_locations is not None
        spec = ModuleSpec(fullname, _Loader(self), origin=own_spec.origin, is_package=is_package)
        spec.submodule_search_locations = own_spec.submodule_search_locations
        spec.has_location = own_spec.has_location
        return spec

    def _refuse(self, name: str, other: str | None) -> None:
        """Let Python import another module of this name from `sys.path`; ImportError for torch itself."""
        if name == _WHOLE:
            raise ImportError(
                "this kernel was started with torch imported, and sys.path "
                f"finds another torch now ({other}): "
                "start an ordinary kernel, or undo the change of sys.path",
                name=name,
            )
        for member in self._family(name):
            del self._modules[member]

    def module(self, name: str) -> ModuleType:
        """Return a hidden module; ImportError if one of its files has changed."""
        if "." not in name and (changed := self._change_in(name)):
            raise ImportError(
                f"this kernel was started with {name} imported, and {changed} has changed since: "
                "restart the kernel to use what is installed now",
                name=name,
            )
        return self._modules[name]

    def show(self, name: str) -> None:
        """Put a module, and all below it, into `sys.modules`."""
        self._modules[name].__spec__ = self._specs[name]  # Python has set it to the spec from `find_spec`
        shown = self._family(name)
        for member in shown:
            sys.modules[member] = self._modules.pop(member)
        if "multiprocessing" in shown:
            sys.modules["__mp_main__"] = sys.modules["__main__"]  # as multiprocessing does at import
        for finder in list(sys.meta_path):  # such as nbcache's, which waits for torch's modules
            if (run_for_imported := getattr(finder, "run_for_imported", None)) is not None:
                run_for_imported(shown)
        if name == _WHOLE:
            sys.meta_path.remove(self)
            self._shown()

    def _change_in(self, name: str) -> str | None:
        if name == _WHOLE and self._replaced is not None:
            return self._replaced
        return self._first_change(self._files(name))

    def _files(self, name: str) -> list[str]:
        paths = (getattr(self._modules[member], "__file__", None) for member in self._family(name))
        return [path for path in paths if path]

    def _family(self, name: str) -> list[str]:
        """Return a module and its submodules, which are shown together; for torch, all modules."""
        if name == _WHOLE:
            return [*self._modules]
        return [member for member in self._modules if member == name or member.startswith(f"{name}.")]


class _Loader(Loader):
    """Loads one hidden module. Each has its own loader, as other finders replace a loader's methods."""

    def __init__(self, hidden: HiddenModules) -> None:
        self._hidden = hidden

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._hidden.module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        name = module.__spec__.name if module.__spec__ is not None else module.__name__
        self._hidden.show(name)


def imported_files(read: Iterable[str]) -> dict[str, Status]:
    """Return the files of imported modules and libraries, those in `read`, and those that set `sys.path`."""
    paths = {*read, *(getattr(module, "__file__", None) for module in sys.modules.copy().values())}
    with open("/proc/self/maps") as stream:
        paths |= {line.split(maxsplit=5)[5].rstrip("\n") for line in stream if "/" in line}
    sites = [folder for folder in sys.path if os.path.basename(folder) in _OF_SITES]
    paths |= {path for folder in sites for path in glob.glob(os.path.join(glob.escape(folder), "*.pth"))}
    paths |= {*sys.path}  # archives on `sys.path`, whose modules are no files
    absolute = [path for path in paths if path and os.path.isabs(path) and not os.path.isdir(path)]
    return {path: status for path in absolute if (status := status_of(path)) is not None}


def status_of(path: str) -> Status | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ctime_ns, status.st_ino


def first_change(files: Mapping[str, Status], paths: Iterable[str]) -> str | None:
    """Return the first path whose file has changed or is missing; skip paths that are not in `files`."""
    return next((path for path in paths if path in files and status_of(path) != files[path]), None)


def modules_in(folder: str) -> frozenset[str]:
    """Return the importable names in a folder, and the metadata of packages installed there."""
    ends = _OF_PACKAGES if os.path.basename(folder) in _OF_SITES else ()
    return frozenset(
        name for name in _names_in(folder) if name.endswith(ends) or _is_module(os.path.join(folder, name))
    )


def shadowing(folder: str, names: Collection[str]) -> str | None:
    """Return a file in a folder that Python would import instead of an imported module in `names`."""
    for file in sorted(_names_in(folder)):
        name, path = file.partition(".")[0], os.path.join(folder, file)
        if name in names and _is_module(path) and _shadows(path, sys.modules.get(name)):
            return file
    return None


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _is_module(path: str) -> bool:
    name = os.path.basename(path)
    return name.endswith(_OF_MODULES) or ("." not in name and name != "__pycache__" and os.path.isdir(path))


def _shadows(path: str, imported: ModuleType | None) -> bool:
    """Return whether Python would find another module at `path`, before the imported one.

    Python tries folders without `__init__` last. A package's own folder is no other module.
    """
    spec = getattr(imported, "__spec__", None)
    if not os.path.isdir(path) or spec is None or not spec.has_location:
        return True
    if not glob.glob(os.path.join(glob.escape(path), "__init__.*")):
        return False
    own = [location for location in spec.submodule_search_locations or () if os.path.exists(location)]
    return not any(os.path.samefile(path, location) for location in own)
