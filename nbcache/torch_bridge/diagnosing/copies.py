"""Copies of a function and of all that it works on, so that running it changes nothing of the user's.

A copy of a function has code of its own, so that Dynamo keeps nothing with the user's code. It has a
namespace of its own, too, where models, optimizers, tensors and what else may change are copies. Functions of
installed packages stay as they are, and so does what other modules of the user's read from their globals.
"""

from __future__ import annotations

import copy
import functools
import random
import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nbcache.core.fingerprints.instructions import LOADS_GLOBAL, steps_of
from nbcache.core.installed import is_installed
from nbcache.torch_bridge.traces.gate import is_users

__all__ = ["Call", "Copied", "copied", "of_tensor", "original"]

_SHARED = (
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    types.BuiltinMethodType,
    types.MethodWrapperType,
)
"""Types of what no call changes, or has of its own."""
_CONTAINERS = (bytearray, deque, dict, list, set, tuple)


@dataclass(frozen=True, slots=True)
class Call:
    """A call, evaluated up to itself."""

    text: str
    """The expression, on one line."""
    name: str
    """What is called, as the expression has it."""
    function: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Copied:
    """A call whose function and arguments are copies."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    modules: dict[str, Any]
    """The modules among what was copied, by the names that the user has for them."""
    uncopied: dict[str, str]
    """What could not be copied, and so is the user's own, with its type, by name."""

    def run(self) -> Any:
        """Call it."""
        __tracebackhide__ = True
        return self.function(*self.args, **self.kwargs)

    def with_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Copied:
        """Return the same call with other arguments."""
        return replace(self, args=args, kwargs=kwargs)


def copied(call: Call) -> Copied:
    """Return a call that changes nothing of the user's, as far as what it works on can be copied."""
    copier = _Copier()
    function = copier.called(call.function, call.name)
    args = tuple(copier.given(each, f"argument {index}") for index, each in enumerate(call.args))
    kwargs = {name: copier.given(each, name) for name, each in call.kwargs.items()}
    return Copied(function, args, kwargs, copier.modules, copier.uncopied)


def of_tensor(call: Call) -> Call:
    """Return the call of a tensor's method, such as `x.sin()`, with the tensor as its first argument.

    torch traces the method of an argument, and none that is bound to a tensor outside.
    """
    import torch

    method = call.function
    owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
    is_method = isinstance(method, (types.BuiltinMethodType, types.MethodType))
    if not is_method or not isinstance(owner, torch.Tensor) or not hasattr(type(owner), name):
        return call

    def of_argument(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(tensor, name)(*args, **kwargs)

    of_argument.__code__ = of_argument.__code__.replace(co_name=name, co_qualname=name)
    return replace(call, function=of_argument, args=(owner, *call.args))


def original(value: Any) -> Any:
    """Return what was compiled, where `value` is what torch.compile made of it; else `value` itself."""
    from torch._dynamo.eval_frame import OptimizedModule

    while True:
        if isinstance(value, OptimizedModule):
            value = value._orig_mod
        elif _is_compiled_function(value):
            value = value._torchdynamo_orig_callable
        else:
            return value


def _is_compiled_function(value: Any) -> bool:
    """Tell whether torch.compile has made a function; what only wraps such a one has the same attributes."""
    return (
        isinstance(value, types.FunctionType)
        and value.__code__.co_filename.replace("\\", "/").endswith("torch/_dynamo/eval_frame.py")
        and hasattr(value, "_torchdynamo_orig_callable")
        and not getattr(value, "_torchdynamo_disable", False)
    )


class _Copier:
    """Copies what belongs together, each thing once."""

    def __init__(self) -> None:
        self.modules: dict[str, Any] = {}
        self.uncopied: dict[str, str] = {}
        self._memo: dict[int, Any] = {}
        self._functions: dict[types.FunctionType, types.FunctionType] = {}
        self._scopes: dict[int, dict[str, Any]] = {}
        """Copies of namespaces, by the id of what they are copies of."""
        self._cells: dict[int, types.CellType] = {}
        """Cells of copied functions, by the id of those that they are copies of."""

    def called(self, value: Any, name: str) -> Any:
        """Return a copy of what is called: it has code of its own, unless torch has written it."""
        import torch

        value = original(value)
        if isinstance(value, types.FunctionType):
            return self._called(value)
        if isinstance(value, functools.partial):
            function = self.called(value.func, name)
            arguments = [self.given(each, name) for each in value.args]
            keywords = {key: self.given(each, key) for key, each in value.keywords.items()}
            return functools.partial(function, *arguments, **keywords)
        if isinstance(value, types.MethodType):
            owner = self.given(value.__self__, name.rpartition(".")[0] or name)
            return self._method(value, owner)
        if _is_shared(value):
            return _in_own_frame(value, getattr(value, "__name__", type(value).__name__))
        twin = self.given(value, name)
        if not isinstance(twin, torch.nn.Module):
            return self._method(twin.__call__, twin)
        if _is_of_torch(type(twin).forward):
            return _in_own_frame(twin, type(twin).__name__)
        if twin is not value:
            object.__setattr__(twin, "forward", self._method(twin.forward, twin))
        return twin

    def given(self, value: Any, name: str) -> Any:
        """Return a copy of an argument; the value itself, and a note, where that is impossible."""
        import torch

        value = original(value)
        if isinstance(value, types.FunctionType):
            return self._function(value) if self._is_ours(value) else value
        if isinstance(value, types.MethodType):
            return types.MethodType(value.__func__, self.given(value.__self__, name))
        if _is_shared(value):
            return value
        twin = self._deep(value, name)
        if isinstance(twin, torch.nn.Module):
            self.modules.setdefault(name, twin)
        else:
            for attribute, each in _modules_in(twin):
                self.modules.setdefault(f"{name}.{attribute}", each)
        return twin

    def read(self, value: Any, name: str) -> Any:
        """Return a copy of what a function reads elsewhere, if calls may change it; else the value itself."""
        value = original(value)
        if isinstance(value, types.FunctionType | types.MethodType) or _may_change(value):
            return self.given(value, name)
        if isinstance(value, Iterator):
            self.uncopied.setdefault(name, type(value).__name__)
        return value

    def _method(self, method: Any, owner: Any) -> Any:
        """Return the method of `owner`, with code of its own."""
        function = getattr(method, "__func__", None)
        if not isinstance(function, types.FunctionType):
            return method
        if _is_of_torch(function):
            return _in_own_frame(types.MethodType(function, owner), function.__name__)
        return types.MethodType(self._called(function), owner)

    def _called(self, function: types.FunctionType) -> Any:
        """Return a copy of a function, or of one that a decorator, as torch.no_grad() is, has wrapped."""
        held = [each.cell_contents for each in function.__closure__ or () if not _is_empty(each)]
        wraps = any(isinstance(each, types.FunctionType) and is_users(each.__code__) for each in held)
        if wraps or is_users(function.__code__):
            return self._function(function)
        if _is_of_torch(function):
            return _in_own_frame(function, function.__name__)
        return _with_own_code(function)

    def _is_ours(self, function: types.FunctionType) -> bool:
        """Tell whether a function is of the user's module that what is called is of.

        What Dynamo traces reads the globals of another module in that module itself.
        """
        known = not self._scopes or id(function.__globals__) in self._scopes
        return known and is_users(function.__code__)

    def _deep(self, value: Any, name: str) -> Any:
        memo = self._memo  # never a copy of it: deepcopy notes in it, by its id, what it keeps alive
        before = {*memo, id(memo)}
        try:
            self._foresee(value, memo)
            return copy.deepcopy(value, memo)
        except Exception:  # a generator, a lock, no memory: whatever it is, it stays the user's own
            for key in memo.keys() - before:
                del memo[key]
            self.uncopied.setdefault(name, type(value).__name__)
            return value

    def _foresee(self, value: Any, memo: dict[int, Any]) -> None:
        """Put into the memo what deepcopy cannot copy: tensors within a graph, compiled parts of modules."""
        import torch
        from torch._dynamo.eval_frame import OptimizedModule
        from torch.utils import _pytree

        if isinstance(value, torch.nn.Module):
            for each in value.modules():
                if isinstance(each, OptimizedModule) and id(each) not in memo:
                    memo[id(each)] = copy.deepcopy(original(each), memo)
        elif isinstance(value, torch.Generator):
            memo[id(value)] = value.clone_state()
        else:
            for each in _pytree.tree_leaves(value):
                if isinstance(each, torch.Tensor) and not each.is_leaf and id(each) not in memo:
                    memo[id(each)] = each.detach().clone().requires_grad_(each.requires_grad)

    def _function(self, function: types.FunctionType) -> types.FunctionType:
        """Return a copy of a function in a copy of its namespace."""
        if function in self._functions:
            return self._functions[function]
        names = scope = function.__globals__
        if self._is_ours(function):
            scope = self._scopes.setdefault(id(names), dict(names))
        old_cells = function.__closure__ or ()
        cells = tuple(self._cells.setdefault(id(each), types.CellType()) for each in old_cells)
        twin = _with_own_code(function, scope, cells)
        self._functions[function] = twin  # before what it refers to, which may be itself
        for name in _globals_of(function.__code__):
            if scope is not names and name in names and scope.get(name) is names[name]:
                scope[name] = self.read(names[name], name)
        for old, new, name in zip(old_cells, cells, function.__code__.co_freevars, strict=True):
            if _is_empty(new) and not _is_empty(old):
                new.cell_contents = self.read(old.cell_contents, name)
        defaults, keywords = function.__defaults__ or (), function.__kwdefaults__ or {}
        twin.__defaults__ = tuple(self.read(each, "a default") for each in defaults) or None
        twin.__kwdefaults__ = {name: self.read(each, name) for name, each in keywords.items()} or None
        return twin


def _with_own_code(
    function: types.FunctionType,
    scope: dict[str, Any] | None = None,
    closure: tuple[types.CellType, ...] | None = None,
) -> types.FunctionType:
    """Return the function with code of its own: Dynamo keeps what it compiles with the code."""
    twin = types.FunctionType(
        function.__code__.replace(),
        function.__globals__ if scope is None else scope,
        function.__name__,
        function.__defaults__,
        function.__closure__ if closure is None else closure,
    )
    twin.__kwdefaults__ = function.__kwdefaults__
    twin.__dict__.update(function.__dict__)
    twin.__qualname__, twin.__module__, twin.__doc__ = (
        function.__qualname__,
        function.__module__,
        function.__doc__,
    )
    return twin


def _in_own_frame(call: Any, name: str) -> Any:
    """Return what calls a function or module of torch's.

    torch.compile would do it by code that all of them share, the user's too.
    """

    def forward(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    forward.__code__ = forward.__code__.replace(co_name=name, co_qualname=name)
    return forward


def _is_of_torch(value: Any) -> bool:
    """Tell whether torch has written a function: Dynamo knows some of these by their identity."""
    return str(getattr(value, "__module__", "")).partition(".")[0] == "torch"


def _is_shared(value: Any) -> bool:
    """Tell whether a value is one that no call changes, or of torch's registries, such as an operator."""
    of_torch = type(value).__module__.partition(".")[0] == "torch"
    return isinstance(value, _SHARED) or (of_torch and not _may_change(value))


def _may_change(value: Any) -> bool:
    """Tell whether a value is one that calls may change, and that is to be copied.

    Objects of libraries are not, other than those with a state of their own that can be saved, such as
    modules and optimizers.
    """
    import torch

    if isinstance(value, (torch.Tensor, torch.Generator, random.Random, *_CONTAINERS)):
        return True
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return not isinstance(value, type)
    if isinstance(value, _SHARED):
        return False
    name = type(value).__module__
    if name == "numpy" or name.startswith("numpy.random"):
        return True
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return name == "__main__" or (bool(file) and not is_installed(file))


def _globals_of(code: types.CodeType) -> Iterator[str]:
    """Yield the names of globals that code reads, and code in it."""
    for step in steps_of(code):
        if step.operation in LOADS_GLOBAL:
            yield str(step.value)
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _globals_of(each)


def _is_empty(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def _modules_in(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the modules that are attributes of an object: those of a trainer, say."""
    import torch

    for name, each in getattr(value, "__dict__", {}).items():
        if isinstance(each, torch.nn.Module):
            yield name, each
