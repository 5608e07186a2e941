"""Save the state that a call can change, and restore it in place afterwards.

A call reaches its arguments, the object of a method, the values in its function's closure, and the globals
that the function names. Other objects of the process are neither read nor copied.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import mmap
import random
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any

from nbcache.core.installed import is_installed

_CONTAINERS: tuple[type, ...] = (list, deque, set, bytearray, OrderedDict, dict)
_ITERABLES = (*_CONTAINERS, tuple, frozenset)
"""Base classes. Their methods are called, since a subclass may override its own."""
_ATOMS = (int, float, complex, str, bytes, type, types.ModuleType, types.BuiltinFunctionType, type(None))
_Places = Iterator[tuple[str, Any]]


class State:
    """The values of all tensors, arrays, containers, objects and names that `roots` reach."""

    def __init__(self, roots: Mapping[str, Any]) -> None:
        self.tensors: dict[str, Any] = {}
        """Tensors by place, such as `model.0.weight`."""
        self.unsaved: dict[str, str] = {}
        """Types of the objects that cannot be restored, by place."""
        self._restorers: list[Callable[[], None]] = []
        visited: dict[int, Any] = {}  # holds the objects, so that Python cannot reuse their ids
        queue = deque(roots.items())
        while queue:
            place, value = queue.popleft()
            if id(value) not in visited and not isinstance(value, _ATOMS):
                visited[id(value)] = value
                queue.extend(self._save(place, value))

    def restore(self) -> int:
        """Restore all values; return the number of failures."""
        failures = 0
        for restorer in self._restorers:
            try:
                restorer()
            except Exception:  # the other values must still be restored
                failures += 1
        return failures

    def _add(self, restore: Callable[..., Any], *arguments: Any) -> None:
        self._restorers.append(partial(restore, *arguments))

    def _save(self, place: str, value: Any) -> _Places:
        """Save an object; yield the objects that it refers to, by place."""
        import torch

        numpy = sys.modules.get("numpy")
        if isinstance(value, torch.Tensor):
            self._save_tensor(place, value)
        elif numpy and isinstance(value, numpy.ndarray):
            if value.flags.writeable and not _is_of_file(value):
                try:
                    self._add(numpy.copyto, value, value.copy())
                except Exception:  # no memory
                    self.unsaved[place] = type(value).__name__
            yield f"{place}.base", value.base
        elif isinstance(value, types.FunctionType):
            yield from self._save_function(place, value)
        elif isinstance(value, types.MethodType):
            yield from ((place, value.__func__), (place.rpartition(".")[0] or place, value.__self__))
        elif isinstance(value, functools.partial):
            yield from ((place, part) for part in (value.func, value.args, value.keywords))
        elif isinstance(value, _ITERABLES):
            base: Any = next(base for base in _ITERABLES if isinstance(value, base))
            if base in _CONTAINERS:
                self._add(_restore_contents, value, base, _contents(value, base))
                yield from self._save_attributes(place, value)
            items = base.items(value) if issubclass(base, dict) else enumerate(base.__iter__(value))
            yield from ((f"{place}[{key!r}]", item) for key, item in items)
        elif isinstance(value, torch.Generator):
            self._add(value.set_state, value.get_state())
        elif isinstance(value, random.Random):
            self._add(value.setstate, value.getstate())
        elif isinstance(value, Iterator):
            self.unsaved[place] = type(value).__name__
        else:
            if isinstance(value, torch.nn.Module):  # first, so that places have the names that users know
                tensors = (*value.named_parameters(), *value.named_buffers())
                yield from ((f"{place}.{name}", tensor) for name, tensor in tensors)
            yield from self._save_attributes(place, value)

    def _save_attributes(self, place: str, value: Any) -> _Places:
        if not _has_state(value):
            return
        if hasattr(value, "__dict__"):
            attributes = vars(value)
            self._add(_restore_contents, attributes, dict, _contents(attributes, dict))
            yield from ((f"{place}.{name}", item) for name, item in attributes.items())
        for base in type(value).__mro__:
            for name, item in vars(base).items():
                if _is_users_function(item):
                    yield place, item
                elif isinstance(item, types.MemberDescriptorType) and hasattr(value, name):
                    self._add(item.__set__, value, slot := item.__get__(value))
                    yield f"{place}.{name}", slot

    def _save_tensor(self, place: str, tensor: Any) -> None:
        self.tensors[place] = tensor
        gradient = tensor.grad if tensor.is_leaf else None
        try:
            for part in (tensor, gradient):
                if part is not None:
                    self._add(_copy_back, part, part.detach().to("cpu", copy=True))
        except Exception:  # no memory, or a subclass or device without copies
            self.unsaved[place] = type(tensor).__name__
        if tensor.is_leaf:
            self._add(setattr, tensor, "grad", gradient)

    def _save_function(self, place: str, function: types.FunctionType) -> _Places:
        """Save a function's closure and, if it is the user's, the globals that it names; yield the values."""
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # an empty cell
                self._add(setattr, cell, "cell_contents", cell.cell_contents)
                yield name, cell.cell_contents
        if _is_users_function(function):
            scope = function.__globals__
            for name in sorted(_globals_in(function.__code__)):
                if name in scope:
                    self._add(scope.__setitem__, name, scope[name])
                    yield name, scope[name]
                else:
                    self._add(scope.pop, name, None)
            yield place, function.__defaults__
            yield from (function.__kwdefaults__ or {}).items()


def _copy_back(tensor: Any, copy: Any) -> None:
    import torch

    with contextlib.suppress(Exception):  # a dtype or layout that torch.equal does not support
        if torch.equal(tensor.detach().to("cpu"), copy):
            return
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        tensor.data.copy_(copy)  # by .data, so that autograd graphs that saved the tensor stay valid


def _contents(container: Any, base: Any) -> list[Any]:
    if issubclass(base, dict):
        return [*chain.from_iterable(base.items(container))]
    return [*base.__iter__(container)]


def _restore_contents(container: Any, base: Any, contents: list[Any]) -> None:
    current = _contents(container, base)
    if len(current) != len(contents) or any(a is not b for a, b in zip(current, contents, strict=True)):
        base.clear(container)
        items = zip(contents[::2], contents[1::2], strict=True) if issubclass(base, dict) else contents
        (base.update if hasattr(base, "update") else base.extend)(container, items)


def _globals_in(code: types.CodeType) -> set[str]:
    """Return the names of the globals that code, with its nested code objects, reads or binds."""
    names = {str(step.argval) for step in dis.get_instructions(code) if "_GLOBAL" in step.opname}
    within = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return names.union(*map(_globals_in, within))


def _is_users_function(value: Any) -> bool:
    return isinstance(value, types.FunctionType) and not is_installed(value.__code__.co_filename)


def _has_state(value: Any) -> bool:
    """Return whether an object has a state dict, such as a module or optimizer, or a user-defined class."""
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return True
    name = type(value).__module__
    file = getattr(sys.modules.get(name), "__file__", None)
    return name == "__main__" or (file is not None and not is_installed(file))


def _is_of_file(array: Any) -> bool:
    """Return whether an array, or the base of this view, is a memory-mapped file."""
    while array is not None and not isinstance(array, mmap.mmap):
        array = getattr(array, "base", None)
    return array is not None


@contextlib.contextmanager
def process_state() -> Iterator[None]:
    """At the end, restore random streams, the gradient mode and Dynamo's profile of dynamic sizes."""
    import torch
    from torch._dynamo import pgo

    if torch.cuda.is_available():
        with contextlib.suppress(Exception):  # the GPU's memory is full, or another process occupies it
            torch.cuda.init()  # as the first compiled call does; a random stream must exist to be saved
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    python, numpy = random.getstate(), sys.modules.get("numpy")
    arrays = numpy.random.get_state() if numpy else None
    gradients, profile = torch.is_grad_enabled(), (pgo._CODE_STATE, pgo._INIT_CODE_STATE)
    # One object in both: torch stores a profile as soon as it differs from the initial one.
    pgo._CODE_STATE = pgo._INIT_CODE_STATE = defaultdict(pgo.CodeState)
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        pgo._CODE_STATE, pgo._INIT_CODE_STATE = profile
        torch.set_grad_enabled(gradients)
        random.setstate(python)
        if numpy:
            numpy.random.set_state(arrays)


def seed_all(seed: int) -> None:
    import torch

    torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed an unused GPU later
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)
