"""The facts of a trace: found where it is recorded, and asked for again where it may be adopted.

They are values by their sources, places in modules, and digests of objects, torch's among them.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import types
from collections.abc import Iterable, Mapping, Sequence, Set
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import CellType, CodeType, FunctionType, ModuleType, WrapperDescriptorType
from typing import Any

from nbcache.core.canonical_json import corrupt
from nbcache.core.fingerprints.code_digest import code_digest, hashed
from nbcache.core.fingerprints.objects import Objects, Rule, full_name, is_plain
from nbcache.core.installed import is_installed

__all__ = [
    "ABSENT",
    "ANNOTATIONS",
    "CONFIGS",
    "COUNTERS",
    "IDENTITY",
    "IGNORED",
    "LINES",
    "REGISTRATIONS",
    "RUNS",
    "TENSOR_MARKS",
    "Expression",
    "Frame",
    "Own",
    "TorchObjects",
    "Untold",
    "Values",
    "builtins_of",
    "constant_from",
    "constant_to",
    "expression_of",
    "fact_of",
    "found_at",
    "is_config",
    "is_whole",
    "module_named",
    "name_of",
    "names_held",
    "names_of",
    "place_of",
    "registrations",
    "same_objects",
    "scope_name",
    "scope_of",
    "value_types",
]

ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "absent"})()
"""In place of a value that is not there."""
RUNS: Any = type("Runs", (), {"__repr__": lambda self: "what your code returns"})()
"""In place of a value that cannot be had without running code of the user's, such as a property's."""
_BUILT_IN = "built in"
_RUNS = "runs code"
_HELD = "held"
_A = "a "
_SOURCE = "<source>"
"""The file of the code of sources."""
_SINGLES = (tuple, frozenset, range, slice)
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


class TorchObjects(Objects):
    """The digests of one recording, or of one check."""

    def __init__(self, torch: ModuleType, *, annotations: bool) -> None:
        super().__init__([_rule(torch)], IGNORED, (ContextVar, *value_types(torch)), annotations=annotations)
        self._torch = torch

    def is_deep(self, kind: type) -> bool:
        """Return whether Python may read such objects with all that they hold, while Dynamo traces.

        C compares some of them, as torch or the user allows. Configurations of transformers have methods.
        """
        from torch._dynamo.variables import user_defined

        if is_config(kind) or self._torch.utils._pytree.is_constant_class(kind):
            return True
        allowed = getattr(user_defined, "_SAFE_C_SLOTS", None) or ()
        methods = (vars(base).get(name) for base in kind.__mro__ for name in _COMPARING)
        return any(
            type(method) is WrapperDescriptorType
            and method in allowed
            and method.__objclass__.__module__ not in _COMPARED_AS_TOLD
            for method in methods
        )

    def scope_name(self, scope: dict[str, Any]) -> str:
        return scope_name(scope)

    def counters(self, cls: type) -> frozenset[str]:
        return COUNTERS if cls is self._torch.utils.hooks.RemovableHandle else frozenset()


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
    trees = TorchObjects(torch, annotations=False)
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
    variables = (os.environ, os.environ._data)  # type: ignore[attr-defined]

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
            return "environment"  # code that reads it has no trace
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


class _Runs(BaseException):
    """Code of the user's would run."""


def _refuse_code(frame: types.FrameType, event: str, argument: object) -> None:
    """Raise `_Runs` where a function of the user's begins; a profile function."""
    file = frame.f_code.co_filename
    if event == "call" and file != _SOURCE and not is_installed(file):
        raise _Runs


class Values:
    """The values that sources stand for here. Nobody may profile meanwhile."""

    def __init__(self, frame: Mapping[str, Any], scope: Mapping[str, Any], env: Any) -> None:
        """`frame` are the locals, `scope` the globals, `env` what torch's expressions may name besides."""
        self._names = {**env, "L": frame, "G": scope}
        self._known: dict[Any, Any] = {}
        if sys.getprofile() is not None:
            raise Untold("a profiler runs")

    def of(self, source: Any) -> Any:
        """Return what a source stands for, as `read` does."""
        if source not in self._known:
            base = getattr(source, "base", None)
            self._known[source] = self.read(expression_of(source), None if base is None else self.of(base))
        return self._known[source]

    def read(self, expression: Expression | None, base: Any) -> Any:
        """Return what a source stands for, by its expression, and what it is read from, if from anything.

        ABSENT where nothing is found, RUNS where code of the user's would have to run.
        """
        if expression is None or base is ABSENT:
            return ABSENT
        if base is RUNS or (expression.has_key and self._is_made(expression, base)):
            return RUNS
        sys.setprofile(_refuse_code)
        try:
            value = eval(expression.code, self._names, {"_": base})
        except _Runs:
            return RUNS
        except Exception:
            value = ABSENT
        finally:
            was_refused = sys.getprofile() is None  # Python drops a profile function that raises
            sys.setprofile(None)
        return RUNS if was_refused else value

    def _is_made(self, expression: Expression, base: Any) -> bool:
        """Return whether a dictionary would make the element that an expression asks for."""
        kind = type(base)
        if not (issubclass(kind, dict) and any("__missing__" in vars(owner) for owner in kind.__mro__)):
            return False
        key = expression.key if expression.index is None else self.of(expression.index)
        return key is RUNS or not dict.__contains__(base, key)


@dataclass(frozen=True, slots=True)
class Expression:
    """torch's expression of a source. It gives what `Source.get_value` gives, but faster."""

    code: types.CodeType
    """In it, `_` is what the source is read from."""
    has_key: bool = False
    """Whether it asks for an element of `_`, which may be a dictionary, by whatever method."""
    key: Any = None
    """The place of that element; None where `index` has it."""
    index: Any = None
    """The source of that element's place; None where the place is a constant."""


def expression_of(source: Any) -> Expression | None:
    """Return the expression of a source; None where it has none, such as one for torch's global state."""
    try:
        template = source._name_template
        if not hasattr(source, "base"):
            return Expression(_compiled(template))
        index = getattr(source, "index", None)
        is_source = hasattr(index, "get_value")
        return Expression(
            _compiled(template.format("_")),
            has_key=template.startswith(("{0}[", "dict.__getitem__({0}")),
            key=None if is_source else index,
            index=index if is_source else None,
        )
    except Exception:
        return None


@functools.lru_cache(maxsize=4096)
def _compiled(expression: str) -> types.CodeType:
    """Return the code of an expression of torch's: many layers of a model have the same."""
    return compile(expression, _SOURCE, "eval")


def fact_of(objects: Objects, value: Any, scope: Mapping[str, Any], *, whole: bool = True) -> str:
    """Return what counts of a value, its class alone unless it counts as a `whole`.

    Of all built-in names together nothing does, as each counts alone.
    """
    if value is ABSENT:
        return "absent"
    if value is RUNS:
        return _RUNS
    if value is builtins_of(scope):
        return _BUILT_IN
    return objects.digest(value) if whole else f"{_A}{objects.digest(type(value))}"


def is_whole(fact: str) -> bool:
    """Tell whether a fact tells more of a value than its class."""
    return not fact.startswith(_A)


def same_objects(values: Sequence[Any]) -> list[int]:
    """Return for each value the index of the first that is the very same object; its own, of constants."""
    first: dict[int, int] = {}
    return [
        index
        if is_plain(value) or value is ABSENT or value is RUNS or type(value) in _SINGLES
        else first.setdefault(id(value), index)
        for index, value in enumerate(values)
    ]


def scope_of(module: str, scope: dict[str, Any]) -> dict[str, Any] | None:
    """Return the globals of a module; those of the function itself, where the name is empty."""
    return scope if not module else getattr(module_named(module), "__dict__", None)


def builtins_of(scope: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what names stand for that are no globals."""
    found: Any = scope["__builtins__"]
    return found if isinstance(found, dict) else found.__dict__


def names_of(objects: Objects, scope: Mapping[str, Any], names: Iterable[str]) -> list[list[str]]:
    """Return what each name means to code with these globals; of numbers and texts, which they are."""
    builtin = builtins_of(scope)
    rows = []
    for name in names:
        if name in scope:
            value = scope[name]
            rows.append([name, objects.digest(value) if is_plain(value) else _HELD])
        else:
            value = builtin.get(name, ABSENT)
            told = objects.digest(value) if is_plain(value) else _BUILT_IN
            rows.append([name, "absent" if value is ABSENT else told])
    return rows


def names_held(scope: Mapping[str, Any], asked: Set[str]) -> set[str]:
    """Return which of the names that are asked for a module has; of one that is None, that it is, too.

    A method of a protocol that is None there does not fit it.
    """
    held = asked & scope.keys()
    return held | {f"{name} is None" for name in held if scope[name] is None}


def place_of(value: Any) -> tuple[str, str] | None:
    """Return the module and the qualified name under which a function or class is found; None elsewhere."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(module, str) and isinstance(name, str):
        try:
            return (module, name) if found_at(module, name) is value else None
        except Untold:
            pass
    return None


def found_at(module: str, name: str) -> Any:
    """Return what is found under a qualified name in a module that is imported; Untold where nothing is."""
    found: Any = module_named(module)
    for part in name.split("."):
        if isinstance(found, types.ModuleType):
            found = found.__dict__.get(part, ABSENT)
        elif isinstance(found, type):
            found = inspect.getattr_static(found, part, ABSENT)
            if isinstance(found, (staticmethod, classmethod)):
                found = found.__func__
            elif isinstance(found, property):
                found = found.fget
        else:
            found = ABSENT
    if found is ABSENT:
        raise Untold(f"{name} is not in {module}")
    return found
