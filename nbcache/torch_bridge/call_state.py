"""The state that a call can change: saved before it runs, and restored in place afterwards.

A call reaches its arguments, the module or object that it is a method of, and the values of its function's
closure and of the globals that it names; other objects of the process are neither read nor copied.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import random
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from nbcache.core.installed import is_installed

__all__ = ["State", "process_state", "seed_all"]

_CONTAINERS: tuple[type, ...] = (list, deque, set, bytearray, OrderedDict, dict)
_ITERABLES = (*_CONTAINERS, tuple, frozenset)
"""The methods of the first of these bases are called, since a subclass may override them."""
_ATOMS = (int, float, complex, str, bytes, type, types.ModuleType, types.BuiltinFunctionType, type(None))
_MISSING = object()


class State:
    """The values of all tensors, containers, objects and names that are reached from `roots`.

    Tensors are copied to the CPU. All else is remembered by reference.
    """

    def __init__(self, roots: Mapping[str, Any]) -> None:
        self.tensors: dict[str, Any] = {}
        """Tensors by place, such as `model.0.weight`; gradients are not among them."""
        self.unsaved: dict[str, str] = {}
        """Types of the objects that cannot be restored, by place."""
        self._restorers: list[Callable[[], None]] = []
        visited: dict[int, Any] = {}  # with the objects, so that no id is used again
        queue = deque(roots.items())
        while queue:
            place, value = queue.popleft()
            if id(value) not in visited and not isinstance(value, _ATOMS):
                visited[id(value)] = value
                queue.extend(self._save(place, value))

    def restore(self) -> int:
        """Put all back that has changed; return how many values could not be put back."""
        failures = 0
        for restorer in self._restorers:
            try:
                restorer()
            except Exception:  # the others must be restored all the same
                failures += 1
        return failures

    def _save(self, place: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Save an object; yield the objects that it refers to, by place."""
        import torch

        if isinstance(value, torch.Tensor):
            self._save_tensor(place, value)
        elif isinstance(value, types.FunctionType):
            yield from self._save_function(place, value)
        elif isinstance(value, types.MethodType):
            yield place, value.__func__
            yield place.rpartition(".")[0] or place, value.__self__
        elif isinstance(value, functools.partial):
            yield from ((place, part) for part in (value.func, value.args, value.keywords))
        elif isinstance(value, _ITERABLES):
            if isinstance(value, _CONTAINERS):
                self._restorers.append(_contents_restorer(value))
                if _has_state(value):
                    yield from self._save_attributes(place, value)
            items = dict.items(value) if isinstance(value, dict) else enumerate(_kind(value).__iter__(value))
            yield from ((f"{place}[{key!r}]", item) for key, item in items)
        elif isinstance(value, torch.Generator):
            self._restorers.append(functools.partial(value.set_state, value.get_state()))
        elif isinstance(value, random.Random):
            self._restorers.append(functools.partial(value.setstate, value.getstate()))
        elif isinstance(value, Iterator):
            self.unsaved[place] = type(value).__name__
        elif _has_state(value):
            if isinstance(value, torch.nn.Module):  # first, for the places that people know
                tensors = (*value.named_parameters(), *value.named_buffers())
                yield from ((f"{place}.{name}", tensor) for name, tensor in tensors)
            yield from self._save_attributes(place, value)

    def _save_attributes(self, place: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Save the attributes of an object, in its `__dict__` and in slots; yield them, by place."""
        if hasattr(value, "__dict__"):
            self._restorers.append(_contents_restorer(vars(value)))
            yield from ((f"{place}.{name}", item) for name, item in vars(value).items())
        for kind in type(value).__mro__:
            for name, item in vars(kind).items():
                if _is_users_function(item):
                    yield place, item
                elif isinstance(item, types.MemberDescriptorType) and hasattr(value, name):
                    slot = item.__get__(value)
                    self._restorers.append(functools.partial(item.__set__, value, slot))
                    yield f"{place}.{name}", slot

    def _save_tensor(self, place: str, tensor: Any) -> None:
        self.tensors[place] = tensor
        gradient = tensor.grad if tensor.is_leaf else None
        try:
            self._restorers.append(_tensor_restorer(tensor))
            if gradient is not None:
                self._restorers.append(_tensor_restorer(gradient))
        except Exception:  # no memory, or a subclass or device that has no copies
            self.unsaved[place] = type(tensor).__name__
        if tensor.is_leaf:
            self._restorers.append(functools.partial(setattr, tensor, "grad", gradient))

    def _save_function(self, place: str, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
        """Save the cells, the defaults and, of the user's functions, the globals that they name."""
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # an empty cell
                value = cell.cell_contents
                self._restorers.append(functools.partial(setattr, cell, "cell_contents", value))
                yield name, value
        if _is_users_function(function):
            for name in sorted(_globals_in(function.__code__)):
                self._restorers.append(_name_restorer(function.__globals__, name))
                yield name, function.__globals__.get(name)
            yield place, function.__defaults__
            yield from (function.__kwdefaults__ or {}).items()


def _tensor_restorer(tensor: Any) -> Callable[[], None]:
    """Copy a tensor to the CPU; return a function that puts the values back."""
    import torch

    copy = tensor.detach().to("cpu", copy=True)

    def restore() -> None:
        with contextlib.suppress(Exception):  # a dtype or layout that torch.equal does not support
            if torch.equal(tensor.detach().to("cpu"), copy):
                return
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            tensor.data.copy_(copy)  # by .data, so that graphs that have saved the tensor stay valid

    return restore


def _contents_restorer(container: Any) -> Callable[[], None]:
    """Return a function that puts the contents of a container back if other objects are in it."""
    kind = _kind(container)
    is_dict = issubclass(kind, dict)

    def contents() -> list[Any]:
        return [*kind.keys(container), *kind.values(container)] if is_dict else [*kind.__iter__(container)]

    original = contents()
    items: Iterable[Any] = original
    if is_dict:
        half = len(original) // 2
        items = [*zip(original[:half], original[half:], strict=True)]
    fill = kind.update if hasattr(kind, "update") else kind.extend

    def restore() -> None:
        now = contents()
        if len(now) != len(original) or any(map(lambda one, two: one is not two, now, original)):
            kind.clear(container)
            fill(container, items)

    return restore


def _kind(container: Any) -> Any:
    return next(kind for kind in _ITERABLES if isinstance(container, kind))


def _name_restorer(scope: dict[str, Any], name: str) -> Callable[[], None]:
    original = scope.get(name, _MISSING)

    def restore() -> None:
        if original is _MISSING:
            scope.pop(name, None)
        elif scope.get(name, _MISSING) is not original:
            scope[name] = original

    return restore


def _globals_in(code: types.CodeType) -> set[str]:
    """Return the names of the globals that code, and the code within it, reads or binds."""
    names = {str(step.argval) for step in dis.get_instructions(code) if "_GLOBAL" in step.opname}
    within = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return names.union(*map(_globals_in, within))


def _is_users_function(value: Any) -> bool:
    return isinstance(value, types.FunctionType) and not is_installed(value.__code__.co_filename)


def _has_state(value: Any) -> bool:
    """Return whether an object has attributes that calls change.

    These are modules, optimizers and others with a `state_dict`, and objects of the user's classes.
    """
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return True
    name = type(value).__module__
    file = getattr(sys.modules.get(name), "__file__", None)
    return name == "__main__" or (file is not None and not is_installed(file))


@contextlib.contextmanager
def process_state() -> Iterator[None]:
    """Restore, at the end, random streams, the gradient mode and Dynamo's profile of dynamic sizes."""
    import torch
    from torch._dynamo import pgo

    python, numpy = random.getstate(), sys.modules.get("numpy")
    arrays = numpy.random.get_state() if numpy else None
    gradients, profile = torch.is_grad_enabled(), (pgo._CODE_STATE, pgo._INIT_CODE_STATE)
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    # The same object twice: torch stores a profile once it differs from the first one.
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
    """Seed torch, Python and NumPy."""
    import torch

    torch.default_generator.manual_seed(seed)  # torch.manual_seed would later seed a GPU that is not used yet
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)
