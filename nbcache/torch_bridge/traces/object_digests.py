"""Parts of traces: frames, names of modules, and the digests of objects, torch's among them."""

from __future__ import annotations

import os
import sys
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import CellType, CodeType, FunctionType, ModuleType, WrapperDescriptorType
from typing import Any

from nbcache.core.canonical_json import corrupt
from nbcache.core.fingerprints.code_digest import code_digest, hashed
from nbcache.core.fingerprints.objects import Objects, Rule, full_name

__all__ = [
    "ANNOTATIONS",
    "CONFIGS",
    "COUNTERS",
    "IDENTITY",
    "IGNORED",
    "LINES",
    "REGISTRATIONS",
    "TENSOR_MARKS",
    "Frame",
    "Own",
    "Untold",
    "constant_from",
    "constant_to",
    "environment",
    "is_config",
    "module_named",
    "name_of",
    "objects_for",
    "registrations",
    "scope_name",
    "value_types",
]

IGNORED = frozenset({"_torchdynamo_wrapper_id"})
"""Attributes that number what Dynamo has compiled."""
COUNTERS = frozenset({"next_id"})
"""Attributes of torch's classes that number things, and that no fact tells."""
CONFIGS = frozenset(
    {
        ("transformers.configuration_utils", "PreTrainedConfig"),
        ("transformers.integrations.heterogeneity.configuration_utils", "HeterogeneousConfigMixin"),
    }
)
"""Classes with a `__getattribute__` that reads nothing but its object, by module and name."""
TENSOR_MARKS = ("_dynamo_static_input_type", "_dynamo_weak_dynamic_indices")
"""Attributes that Dynamo itself sets on tensors that it has met."""
_OF_OPERATORS = frozenset(
    {
        *("__annotations__", "__module__", "__name__", "__qualname__", "_cacheable", "_defined_in_python"),
        *("_dir", "_dispatch_cache", "_has_torchbind_op_overload", "_name", "_namespace"),
        *("_nondeterministic_seeded", "_ns"),
        *("_op", "_op_dk", "_overload_names", "_overloadname", "_overloadpacket", "_qualified_op_name"),
        *("_schema", "_supports_training_input_mutation", "_tags", "functorch_table", "is_view"),
        *("non_fallthrough_keys", "py_kernels", "python_key_table", "subgraph_indexes"),
    }
)
"""Attributes that torch itself sets on its operators."""
_TRACING_RULES = (
    "_allowed_callable_ids",
    "_disallowed_callable_ids",
    "_leaf_function_ids",
    "_nonstrict_trace_callable_ids",
    "_polyfilled_function_ids",
)
"""Sets of the ids of functions that Dynamo treats in a way of their own."""
_COMPARING = ("__eq__", "__ge__", "__gt__", "__hash__", "__le__", "__lt__", "__ne__")
_COMPARED_AS_TOLD = ("datetime", "decimal", "re")
"""Modules of the types that torch itself has C compare."""

IDENTITY = "="
"""The place of the fact that says which objects were the very same."""
REGISTRATIONS = "<"
"""The place of the fact that says which classes were registered for which abstract ones."""
LINES = "^"
"""The place of the fact that tells the lines of the function, where Python runs some of it as it stands."""
ANNOTATIONS = "%"
"""The place of the fact that says that annotations of functions count."""


_COPY = "torch._dynamo.polyfills.{0}.py_{0}"
"""Where Dynamo keeps the copy of a module of Python's that has no code in C, such as `operator`."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A call of a function that is compiled."""

    code: CodeType
    scope: dict[str, Any]
    """The function's globals."""
    values: dict[str, Any]
    """Its locals, and what its closure holds."""
    closure: tuple[CellType, ...]


@dataclass(frozen=True, slots=True)
class Own:
    """Stands in the code of a trace for code that is nested in the traced function's."""

    index: int
    """Its place among all nested code, in order."""


class Untold(Exception):
    """A function has no trace, or a trace does not fit; the message, a clause, says why."""

    def __init__(self, why: str, *, names_cause: bool = False) -> None:
        """`names_cause` says whether the message names a function or a value that somebody has changed."""
        super().__init__(why)
        self.names_cause = names_cause


def module_named(name: str) -> Any:
    """Return the module that `name_of` gives a name; None where there is none."""
    if (found := sys.modules.get(name)) is not None:
        return found
    holder, _, module = name.rpartition(".py_")
    if name != _COPY.format(module):
        return None
    return getattr(sys.modules.get(holder), "__dict__", {}).get(f"py_{module}")


def name_of(module: ModuleType) -> str:
    """Return the name by which a module is found again; empty where it is not."""
    name = scope_name(module.__dict__)
    return name if name and module_named(name) is module else ""


def scope_name(scope: dict[str, Any]) -> str:
    """Return the name by which the module with these very globals is found; empty where it is not."""
    name = scope.get("__name__")
    names = (name, _COPY.format(name)) if type(name) is str else ()
    return next((each for each in names if getattr(module_named(each), "__dict__", None) is scope), "")


def environment() -> tuple[Any, Any]:
    """Return the variables of the process's environment, and the dictionary that holds them."""
    return os.environ, getattr(os.environ, "_data", None)


def constant_to(value: Any) -> list[Any]:
    """Return a constant of Dynamo's code as a row of a trace; Untold of what nbcache does not know."""
    import torch

    if type(value) is Own:
        return ["own", value.index]
    if type(value) is torch.device:
        return ["device", str(value)]
    if type(value) in (torch.dtype, torch.layout, torch.memory_format):
        return [type(value).__name__, str(value).removeprefix("torch.")]
    raise Untold(f"its code holds a {type(value).__qualname__}")


def constant_from(row: Any) -> Any:
    """Return the constant of torch's that a row stands for; CorruptEntry where it stands for none."""
    import torch

    kind, name = row if len(row) == 2 else ("", None)
    if kind == "own" and type(name) is int and name >= 0:
        return Own(name)
    if isinstance(name, str) and kind in ("device", "dtype", "layout", "memory_format"):
        try:
            found = torch.device(name) if kind == "device" else getattr(torch, name, None)
        except RuntimeError as error:
            raise corrupt(f"the device {name!r} of a trace is none") from error
        if type(found) is getattr(torch, kind):
            return found
    raise corrupt("a constant of a trace is none")


def value_types(torch: ModuleType) -> tuple[type, ...]:
    """Return torch's types whose instances are told by what they print, and have no identity."""
    return (
        *(torch.dtype, torch.device, torch.finfo, torch.iinfo, torch.layout, torch.memory_format),
        torch.Size,
    )


def objects_for(torch: ModuleType, *, annotations: bool) -> Objects:
    """Return the digests of one recording, or of one check."""
    values = (ContextVar, *value_types(torch))
    counters = {torch.utils.hooks.RemovableHandle: COUNTERS}
    return Objects(
        [_rule(torch)],
        IGNORED,
        values,
        annotations=annotations,
        counters=counters,
        are_deep=partial(_are_deep, torch.utils._pytree),
        scope_name=scope_name,
    )


def _are_deep(pytree: ModuleType, kind: type) -> bool:
    """Return whether Python may read such objects with all that they hold, while Dynamo traces.

    C compares some of them, as torch or the user has allowed. Configurations of transformers have methods.
    """
    from torch._dynamo.variables import user_defined

    allowed = getattr(user_defined, "_SAFE_C_SLOTS", None) or ()
    methods = (vars(base).get(name) for base in kind.__mro__ for name in _COMPARING)
    return (
        is_config(kind)
        or bool(pytree.is_constant_class(kind))
        or any(
            type(each) is WrapperDescriptorType
            and each in allowed
            and each.__objclass__.__module__ not in _COMPARED_AS_TOLD
            for each in methods
        )
    )


def is_config(kind: type) -> bool:
    """Return whether a class is a configuration of transformers."""
    return any(
        vars(base).get("__module__") == module and base.__name__ == name
        for base in kind.__mro__
        for module, name in CONFIGS
    )


def registrations(torch: ModuleType, objects: Objects) -> str:
    """Return the digest of what was registered of the classes that were come to: for others, as trees."""
    pytree = torch.utils._pytree
    nodes, constants = pytree.SUPPORTED_NODES, pytree.CONSTANT_NODES
    registered = {*objects.classes()} & (nodes.keys() | constants) - pytree.BUILTIN_TYPES
    if not registered:
        return objects.registrations
    trees = objects_for(torch, annotations=False)
    told = [
        f"{full_name(kind)} {kind in constants} {trees.digest(_functions(nodes.get(kind)))}"
        for kind in registered
    ]
    return f"{objects.registrations} {hashed(sorted(told))}"


def _functions(node: Any) -> tuple[Any, ...] | None:
    """Return the functions that make a tree of an object, and an object of a tree."""
    return None if node is None else tuple(getattr(each, "__func__", each) for each in tuple(node)[1:])


def _rule(torch: ModuleType) -> Rule:
    import torch._dynamo.trace_rules as trace_rules

    plain = (*value_types(torch), torch.Tag)
    rules = [found for name in _TRACING_RULES if (found := getattr(trace_rules, name, None)) is not None]
    in_rules = frozenset().union(*(each() if callable(each) else each for each in rules))

    dynamo = os.path.dirname(str(trace_rules.__file__)) + os.sep
    variables = environment()

    operators = (torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops.HigherOrderOperator)
    namespaces = (torch._ops._OpNamespace, torch._ops._Ops)
    known: dict[type, Rule | None] = {}
    """The rules of types that were met."""

    def in_context(objects: Objects, value: Any) -> str:
        now = value.get(variables)  # what nobody can have set
        return f"context variable {value.name} {'unset' if now is variables else objects.digest(now)}"

    def of_type(kind: type) -> Rule | None:
        if issubclass(kind, torch.Tensor):
            return partial(_tensor, torch)
        if kind is ContextVar:
            return in_context
        if issubclass(kind, plain):
            return lambda objects, value: f"{kind.__name__} {value}"
        if issubclass(kind, operators):
            return partial(_operator, torch)
        if issubclass(kind, namespaces):
            return lambda objects, value: f"operators {value.__name__}"
        if kind is ModuleType:
            return _module
        return None

    def rule(objects: Objects, value: Any) -> str | None:
        kind = type(value)
        if kind not in known:
            known[kind] = of_type(kind)
        of_value = known[kind]
        return None if of_value is None else of_value(objects, value)

    def treated(objects: Objects, value: Any) -> str | None:
        if value is variables[0] or value is variables[1]:
            return "environment"  # each variable that code reads counts by itself
        found = rule(objects, value)
        code = value.__code__ if type(value) is FunctionType else None
        if code is not None and code.co_filename.startswith(dynamo):  # which it marks once it has traced them
            noted = {name: each for name, each in vars(value).items() if not name.startswith("_")}
            return f"Dynamo's {value.__qualname__} {code_digest(code)} {objects.digest(noted)}"
        if found is not None or id(value) not in in_rules:
            return found
        numbers = [number for number, each in enumerate(rules) if id(value) in each]
        told = "" if code is None else code_digest(code)
        return f"treated {numbers} {getattr(value, '__module__', None)}.{value.__qualname__} {told}"

    return treated


def _module(objects: Objects, value: Any) -> str | None:
    """Return which module it is; None where it cannot be found again."""
    name = name_of(value)
    return f"module {name}" if name else None


def _operator(torch: ModuleType, objects: Objects, value: Any) -> str:
    """Return which operator of torch's it is, its overloads, and what others have set on it."""
    known, overloads = _OF_OPERATORS, []
    if isinstance(value, torch._ops.OpOverloadPacket):
        overloads = sorted(torch._C._jit_get_operation(value._qualified_op_name)[1])
        known = known | {each or "default" for each in overloads}
    others = {name: each for name, each in sorted(vars(value).items()) if name not in known}
    return f"operator {value} {' '.join(overloads)} {objects.digest(others) if others else ''}"


def _tensor(torch: ModuleType, objects: Objects, tensor: Any) -> str:
    """Return what a graph, and torch's key for it, may depend on of a tensor; nothing of what is in it."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or tensor.is_nested:
        return ""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return ""
    marks = {name: held for name, held in vars(tensor).items() if name not in TENSOR_MARKS}
    return " ".join(
        map(
            str,
            (
                *("tensor", type(tensor).__name__, tensor.dtype, tensor.device, tuple(tensor.shape)),
                *(tensor.stride(), tensor.storage_offset(), tensor.untyped_storage().nbytes()),
                *(tensor.data_ptr() % 64, tensor.requires_grad, tensor.is_leaf, tensor._is_view()),
                torch._C._dispatch_keys(tensor).raw_repr(),
                *(len(tensor._backward_hooks or ()), objects.digest(marks)),
            ),
        )
    )
