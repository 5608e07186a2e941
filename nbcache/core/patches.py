"""Patches that can be undone, hooks that cannot fail their caller, and actions after imports."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from types import MappingProxyType, ModuleType
from typing import Any

from nbcache.core.log import logger

_ABSENT = object()
_OF_FUNCTIONS = (classmethod, staticmethod)
_OF_CACHED = ("cache_clear", "cache_info", "cache_parameters")


class Intended(Exception):
    """Base class of errors that a hook raises on purpose."""


class Patches:
    """Replaces attributes and can restore them: the hooks of one part of nbcache."""

    def __init__(
        self,
        on_fault: Callable[[Exception], object] = lambda error: None,
        places: Mapping[str, str | None] | None = None,
    ) -> None:
        """`places` maps the attributes that may be replaced to their parameters; None allows all.

        `on_fault` gets the first exception of a hook; all hooks of this object then do nothing.
        """
        self._undo: list[Callable[[], None]] = []
        self._on_fault = on_fault
        self._places = places
        self.hooks: list[tuple[Any, str]] = []
        self.off = False
        """True after a hook has failed or `restore` was called: hooks then only call the originals."""

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of a class or module until `restore`; AttributeError if it does not exist."""
        self._parameters(owner, name)
        getattr(owner, name)
        original = vars(owner).get(name, _ABSENT)

        def undo() -> None:
            if vars(owner).get(name, _ABSENT) is not value:
                return  # somebody has patched it again
            if original is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)

        self._undo.append(undo)  # first, since an interrupt may come before the attribute is set
        setattr(owner, name, value)

    def hook(self, owner: Any, name: str, stand_in: Callable[..., Any]) -> None:
        """Call `stand_in(original, …)` with the arguments of each call of `owner.name`, until `restore`.

        If `stand_in` raises, the caller gets the result of the original, which runs only once. Only errors of
        the original, and `Intended`, reach the caller. `stand_in` may be a generator function if the original
        returns an iterator. TypeError if the original's parameters differ from those in `places`.
        """
        takes = self._parameters(owner, name)
        descriptor = inspect.getattr_static(owner, name)
        kind = type(descriptor) if isinstance(descriptor, _OF_FUNCTIONS) else None
        original = descriptor if kind is None else descriptor.__func__
        check_parameters(original, name, takes)
        make = self._generator if inspect.isgeneratorfunction(stand_in) else self.wrapped
        hooked = make(original, stand_in)
        functools.update_wrapper(hooked, original)
        for method in filter(partial(hasattr, original), _OF_CACHED):
            setattr(hooked, method, getattr(original, method))
        self.set(owner, name, hooked if kind is None else kind(hooked))
        self.hooks.append((owner, name))

    def _parameters(self, owner: Any, name: str) -> str | None:
        if self._places is None:
            return None
        for cls in owner.__mro__ if isinstance(owner, type) else (None,):
            place = name if cls is None else f"{cls.__qualname__}.{name}"
            if place in self._places:
                return self._places[place]
        raise TypeError(f"{name} of {owner!r} is not in the table of hooks, nbcache/parts.py")

    def within(self, on_fault: Callable[[Exception], object] = lambda error: None) -> Patches:
        """Return new patches for the same attributes."""
        return Patches(on_fault, self._places)

    def wrapped(self, original: Callable[..., Any], stand_in: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls `stand_in(original, …)` as `hook` does."""

        def hook(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True  # IPython leaves this frame out of tracebacks
            if self.off:
                return original(*args, **kwargs)
            call = _Call(original)
            try:
                return stand_in(call, *args, **kwargs)
            except Intended:
                raise
            except Exception as error:
                if error is call.raised:
                    raise
                self.fail(error)
            return call.result(*args, **kwargs)

        return hook

    def _generator(
        self, original: Callable[..., Any], stand_in: Callable[..., Iterator[Any]]
    ) -> Callable[..., Any]:
        def hook(*args: Any, **kwargs: Any) -> Iterator[Any]:
            call = _Iteration(original)
            if not self.off:
                try:
                    for item in stand_in(call, *args, **kwargs):
                        call.mark_yielded()
                        yield item
                    return
                except Intended:
                    raise
                except Exception as error:
                    if error is call.raised:
                        raise
                    self.fail(error)
            yield from call.rest(*args, **kwargs)

        return hook

    def fail(self, error: Exception) -> None:
        """Turn all hooks of this object off, and report the first fault."""
        if self.off:
            return
        self.off = True
        with suppress(Exception):  # a fault in the report must not fail a cell
            self._on_fault(error)
        logger.info("a hook of torch failed", exc_info=error)

    def undo(self, action: Callable[[], None]) -> None:
        self._undo.append(action)

    def restore(self) -> None:
        """Restore the originals, newest first. A hook that somebody has wrapped only calls its original."""
        self.off = True
        self.hooks.clear()
        while self._undo:
            self._undo.pop()()


class _Call:
    """Calls an original function and stores its result."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original = original
        self._called = False
        self._returned: Any = None
        self.raised: BaseException | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        self._called = True
        try:
            self._returned = self._original(*args, **kwargs)
        except BaseException as error:
            self.raised = error
            raise
        return self._returned

    def result(self, *args: Any, **kwargs: Any) -> Any:
        """Return or raise the result of the earlier call, or else of a call with these arguments."""
        if self.raised is not None:
            raise self.raised
        return self._returned if self._called else self._original(*args, **kwargs)


class _Iteration:
    """Iterates over an original's items, and continues after the last item that the caller got."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original = original
        self._iterator: Iterator[Any] | None = None
        self._pending: list[Any] = []
        """The last item that the hook took, unless it has yielded it."""
        self.raised: BaseException | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        try:
            if self._iterator is None:
                self._iterator = iter(self._original(*args, **kwargs))
            for item in self._iterator:
                self._pending = [item]
                yield item
            self._pending = []  # the hook skipped the last item and asked for the next one
        except BaseException as error:
            self.raised = error
            raise

    def mark_yielded(self) -> None:
        self._pending = []

    def rest(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Yield the items after the last one that the caller got."""
        if self.raised is not None and not isinstance(self.raised, GeneratorExit):
            raise self.raised
        yield from self._pending
        yield from self(*args, **kwargs)


def check_parameters(original: Any, name: str, takes: str | None) -> None:
    """Raise TypeError unless `original` is a function with the parameters `takes`: see `Hook`."""
    if not callable(original):
        raise TypeError(f"{name} is no function")
    if takes is None:
        return
    expected, is_complete = takes.split(), True
    if expected[-1:] == ["…"]:
        expected, is_complete = expected[:-1], False
    try:
        parameters = inspect.signature(original).parameters.values()
    except ValueError:  # a function in C without a signature
        return
    kinds = {parameter.name: parameter.kind for parameter in parameters}
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    names = [name for name, kind in kinds.items() if kind not in variable]
    if variable[0] in kinds.values():  # perhaps somebody has wrapped it
        expected = expected[: len(names)]
    if (names if is_complete else names[: len(expected)]) != expected:
        raise TypeError(f"{name} takes ({', '.join(map(str, parameters))})")


class ImportHook(importlib.abc.MetaPathFinder):
    """Runs an action once at the end of a module's execution, before its importer gets the module.

    A module in `around` is executed within that context.
    """

    def __init__(
        self,
        actions: Mapping[str, Callable[[ModuleType], None]],
        around: Mapping[str, Callable[[], AbstractContextManager[None]]] = MappingProxyType({}),
    ) -> None:
        self._actions = dict(actions)
        self._around = dict(around)

    def install(self) -> None:
        """Follow imports, and run the actions of modules that are imported already."""
        for name in list(self._actions):
            module = sys.modules.get(name)
            spec = getattr(module, "__spec__", None)
            if module is not None and not getattr(spec, "_initializing", False):
                self._actions.pop(name)(module)
        sys.meta_path.insert(0, self)

    @property
    def awaited(self) -> list[str]:
        return list(self._actions)

    def uninstall(self) -> None:
        self._actions.clear()
        self._around.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._actions and fullname not in self._around:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: importlib.machinery.ModuleSpec | None = find(fullname, path, target)
            if spec is not None:
                self._hook_loader(spec.loader, fullname)
                return spec
        return None

    def run_for_imported(self, names: Iterable[str]) -> None:
        """Run the actions of modules that the nursery executed before it forked this kernel."""
        for name in filter(self._actions.__contains__, names):
            self._actions.pop(name)(sys.modules[name])

    def _hook_loader(self, loader: Any, name: str) -> None:
        if (execute := getattr(loader, "exec_module", None)) is None:
            return

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # restores the method of the loader's class
            with self._around.pop(name, nullcontext)():
                execute(module)
            if action := self._actions.pop(name, None):
                action(module)

        loader.exec_module = exec_module
