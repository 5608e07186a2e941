"""Facts: digests of the objects and names that Dynamo reads, values of its sources, and keys of frames."""

from __future__ import annotations

import builtins
import codecs
import dataclasses
import functools
import inspect
import locale
import os
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextvars import ContextVar
from dataclasses import dataclass
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType, WrapperDescriptorType
from typing import Any

from nbcache.core.canonical_json import corrupt
from nbcache.core.installed import is_installed
from nbcache.core.key import sha256
from nbcache.keys.fingerprints.code import code_digest, code_tree, hashed, words
from nbcache.keys.fingerprints.objects import Objects, full_name, is_constant, is_left_out, is_of_torch
from nbcache.keys.fingerprints.running import Running, holds_attribute
from nbcache.keys.global_state import HOOKS, flags
from nbcache.torch_bridge.prewarm import logs_compiles
from nbcache.torch_bridge.torch_behavior import TORCHBEHAVIOR

_IGNORED_ATTRIBUTES = frozenset({"_torchdynamo_wrapper_id"})
"""Attributes in which Dynamo numbers its compiles; digests ignore them."""
COUNTERS = frozenset({"next_id"})
"""Attributes in which torch's classes count their instances; digests ignore them."""
CONFIGS = frozenset(
    {
        ("transformers.configuration_utils", "PreTrainedConfig"),
        ("transformers.integrations.heterogeneity.configuration_utils", "HeterogeneousConfigMixin"),
    }
)
"""(module, name) of the classes whose `__getattribute__` reads only its own object."""
TENSOR_MARKS = ("_dynamo_static_input_type", "_dynamo_weak_dynamic_indices")
"""Attributes that Dynamo itself sets on tensors."""
_TENSOR = "tensor: "
_SEPARATOR = "; "
"""Prefix of a tensor's digest, and the separator of the properties in it."""
_OF_OPERATORS = words(
    "__annotations__ __module__ __name__ __qualname__ _cacheable _defined_in_python _dir _dispatch_cache",
    "_has_torchbind_op_overload _name _namespace _nondeterministic_seeded _ns _op _op_dk _overload_names",
    "_overloadname _overloadpacket _qualified_op_name _schema _supports_training_input_mutation _tags",
    "functorch_table is_view non_fallthrough_keys py_kernels python_key_table subgraph_indexes",
)
"""Attributes that torch itself sets on its operators."""
_TRACING_RULES = (
    *("_allowed_callable_ids", "_disallowed_callable_ids", "_leaf_function_ids"),
    *("_nonstrict_trace_callable_ids", "_polyfilled_function_ids"),
)
"""Names of Dynamo's sets of function ids, each with its own rule for tracing these functions."""
_COMPARING = ("__eq__", "__ge__", "__gt__", "__hash__", "__le__", "__lt__", "__ne__")
_DIGESTED_IN_FULL = ("datetime", "decimal", "re")
"""Modules of the types that torch always lets C compare; digests cover all that C reads of them."""

IDENTITY = "="
"""Key of the fact that says which names referred to one object."""
REGISTRATIONS = "<"
"""Key of the fact that digests registrations with abstract classes and as pytree nodes."""
LINES = "^"
"""Key of the fact that digests the function's line numbers, for functions with a graph break."""
ANNOTATIONS = "%"
"""Key of the fact that says that digests of functions include annotations."""


_PURE_PYTHON_COPY = "torch._dynamo.polyfills.{0}.py_{0}"
"""Path at which Dynamo keeps its pure-Python copy of a standard module, such as `operator`."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A call of a compiled function, which Dynamo is about to trace."""

    code: CodeType
    scope: dict[str, Any]
    values: dict[str, Any]
    """Its locals and the values of its closure."""
    closure: tuple[CellType, ...]


@dataclass(frozen=True, slots=True)
class NestedCode:
    """A placeholder in stored code for a code object that is nested in the traced function's code."""

    index: int


class NoTrace(Exception):
    """A function can't have a trace, or a stored trace doesn't fit. The message is a clause: why."""

    def __init__(self, why: str, *, names_cause: bool = False) -> None:
        """`names_cause`: whether the message names a function or a value that the user has changed."""
        super().__init__(why)
        self.names_cause = names_cause


def module_by_name(name: str) -> Any:
    """Return the module that `module_name` has named, perhaps Dynamo's copy; None if it is not imported."""
    if (module := sys.modules.get(name)) is not None:
        return module
    holder, _, original = name.rpartition(".py_")
    if name != _PURE_PYTHON_COPY.format(original):
        return None
    return getattr(sys.modules.get(holder), "__dict__", {}).get(f"py_{original}")


def module_name(module: ModuleType) -> str:
    """Return the name under which another kernel finds this module; empty if there is no such name."""
    name = scope_name(module.__dict__)
    return name if name and module_by_name(name) is module else ""


def scope_name(scope: dict[str, Any]) -> str:
    """Return the name of the module that has exactly this globals dictionary; empty if no module has it."""
    name = scope.get("__name__")
    names = (name, _PURE_PYTHON_COPY.format(name)) if type(name) is str else ()
    return next((path for path in names if getattr(module_by_name(path), "__dict__", None) is scope), "")


def environment() -> tuple[Any, Any]:
    return os.environ, getattr(os.environ, "_data", None)


def constant_to(value: Any) -> list[Any]:
    import torch

    if type(value) is NestedCode:
        return ["own", value.index]
    if type(value) is torch.device:
        return ["device", str(value)]
    if type(value) in (torch.dtype, torch.layout, torch.memory_format):
        return [type(value).__name__, str(value).removeprefix("torch.")]
    raise NoTrace(f"its code has a constant of the type {type(value).__qualname__}")


def constant_from(row: Any) -> Any:
    """Return the constant that `constant_to` wrote; raise CorruptEntry for any other row."""
    import torch

    kind, name = row if len(row) == 2 else ("", None)
    if kind == "own" and type(name) is int and name >= 0:
        return NestedCode(name)
    if isinstance(name, str) and kind in ("device", "dtype", "layout", "memory_format"):
        try:
            constant = torch.device(name) if kind == "device" else getattr(torch, name, None)
        except RuntimeError as error:
            raise corrupt(f"the device {name!r} of a trace is unknown") from error
        if type(constant) is getattr(torch, kind):
            return constant
    raise corrupt("a constant of a trace is invalid")


def value_types(torch: ModuleType) -> tuple[type, ...]:
    """Return torch's value types: their repr describes an instance, and its identity is irrelevant."""
    return (
        *(torch.dtype, torch.device, torch.finfo, torch.iinfo, torch.layout, torch.memory_format),
        torch.Size,
    )


class TorchObjects(Objects):
    ignored = _IGNORED_ATTRIBUTES

    def __init__(self, torch: ModuleType, *, annotations: bool = False) -> None:
        import torch._dynamo.trace_rules as trace_rules
        from torch._dynamo.variables import user_defined

        super().__init__(annotations=annotations)
        self.values = (ContextVar, dataclasses._FIELD_BASE, *value_types(torch))  # type: ignore[attr-defined]
        self._torch = torch
        self._safe_methods = getattr(user_defined, "_SAFE_C_SLOTS", None) or ()
        self._dynamo = os.path.dirname(str(trace_rules.__file__)) + os.sep
        rules = [ids for name in _TRACING_RULES if (ids := getattr(trace_rules, name, None)) is not None]
        self._tracing_rules = [ids() if callable(ids) else ids for ids in rules]
        self._special_ids = frozenset().union(*self._tracing_rules)
        self._rule_for = functools.cache(self._type_rule)

    def is_deep(self, kind: type) -> bool:
        """Return whether Python may read instances with all objects below them while Dynamo traces."""
        methods = (vars(base).get(name) for base in kind.__mro__ for name in _COMPARING)
        return (
            is_config(kind)
            or any("__dataclass_fields__" in vars(base) and is_of_torch(base) for base in kind.__mro__)
            or bool(self._torch.utils._pytree.is_constant_class(kind))
            or any(
                type(method) is WrapperDescriptorType
                and method in self._safe_methods
                and method.__objclass__.__module__ not in _DIGESTED_IN_FULL
                for method in methods
            )
        )

    def counters(self, cls: type) -> frozenset[str]:
        return COUNTERS if cls is self._torch.utils.hooks.RemovableHandle else frozenset()

    def scope_name(self, scope: dict[str, Any]) -> str:
        return scope_name(scope)

    def rule(self, value: Any) -> str | None:
        if any(value is dictionary for dictionary in environment()):
            return "environment"  # each variable that code reads is a fact
        kind: Any = type(value)
        rule = self._rule_for(kind)
        digest = None if rule is None else rule(value)
        code = value.__code__ if kind is FunctionType else None
        if code is not None and code.co_filename.startswith(self._dynamo):  # Dynamo marks its own functions
            public = {name: item for name, item in vars(value).items() if not name.startswith("_")}
            return f"Dynamo's {value.__qualname__} {code_digest(code)} {self.digest(public)}"
        if digest is not None or id(value) not in self._special_ids:
            return digest
        rule_numbers = [number for number, ids in enumerate(self._tracing_rules) if id(value) in ids]
        own_code = "" if code is None else code_digest(code)
        return f"treated {rule_numbers} {getattr(value, '__module__', None)}.{value.__qualname__} {own_code}"

    def _type_rule(self, kind: type) -> Callable[[Any], str | None] | None:
        ops = self._torch._ops
        if issubclass(kind, self._torch.Tensor):
            return self._tensor
        if kind is ContextVar:
            return self._context_variable
        if issubclass(kind, (*value_types(self._torch), self._torch.Tag)):
            return lambda value: f"{kind.__name__} {value}"
        if issubclass(kind, (ops.OpOverload, ops.OpOverloadPacket, ops.HigherOrderOperator)):
            return self._operator
        if issubclass(kind, (ops._OpNamespace, ops._Ops)):
            return lambda value: f"operators {value.__name__}"
        if kind is ModuleType:
            return lambda value: f"module {name}" if (name := module_name(value)) else None
        return None

    def _context_variable(self, variable: ContextVar[Any]) -> str:
        current = variable.get(self)  # a default that no code can have set
        return f"context variable {variable.name} {'unset' if current is self else self.digest(current)}"

    def _operator(self, operator: Any) -> str:
        standard, overloads = _OF_OPERATORS, []
        if isinstance(operator, self._torch._ops.OpOverloadPacket):
            overloads = sorted(self._torch._C._jit_get_operation(operator._qualified_op_name)[1])
            standard = standard | {overload or "default" for overload in overloads}
        extra = {name: item for name, item in sorted(vars(operator).items()) if name not in standard}
        return f"operator {operator} {' '.join(overloads)} {self.digest(extra) if extra else ''}"

    def _tensor(self, tensor: Any) -> str:
        """Return the properties of a tensor on which a graph or its key may depend, without its values."""
        torch = self._torch
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or tensor.is_nested:
            return ""
        if tensor.layout is not torch.strided or tensor.is_quantized:
            return ""
        marks = {name: value for name, value in vars(tensor).items() if name not in TENSOR_MARKS}
        properties = {
            "class": type(tensor).__name__,
            "dtype": tensor.dtype,
            "device": tensor.device,
            "shape": tuple(tensor.shape),
            "strides": tensor.stride(),
            "requires_grad": tensor.requires_grad,
            "is_leaf": tensor.is_leaf,
            "is_view": tensor._is_view(),
            "storage_offset": tensor.storage_offset(),
            "storage_bytes": tensor.untyped_storage().nbytes(),
            "alignment": tensor.data_ptr() % 64,
            "hooks": len(tensor._backward_hooks or ()),
            "dispatch_keys": torch._C._dispatch_keys(tensor).raw_repr(),
            "attributes": self.digest(marks),
        }
        return _TENSOR + _SEPARATOR.join(f"{name} {value}" for name, value in properties.items())


def tensor_difference(old: str, new: str) -> str:
    """Return the first property in which the digests of two tensors differ; empty for other digests."""
    if not (old.startswith(_TENSOR) and new.startswith(_TENSOR)):
        return ""
    properties = (digest.removeprefix(_TENSOR).split(_SEPARATOR) for digest in (old, new))
    before, now = next(pair for pair in zip(*properties, strict=True) if pair[0] != pair[1])
    return f"{before} before, {now.partition(' ')[2]} now"


def is_config(kind: type) -> bool:
    return any(
        vars(base).get("__module__") == module and base.__name__ == name
        for base in kind.__mro__
        for module, name in CONFIGS
    )


def registrations(torch: ModuleType, objects: Objects) -> str:
    """Return the digest of the visited classes' registrations with abstract classes and as pytree nodes."""
    pytree = torch.utils._pytree
    nodes, constants = pytree.SUPPORTED_NODES, pytree.CONSTANT_NODES

    def is_of_others(kind: Any) -> bool:
        """Return whether others than torch have registered a class that digests leave out."""
        if not (isinstance(kind, type) and is_left_out(kind)):
            return False
        calls = [call for call in tuple(nodes.get(kind, ()))[1:] if callable(call)]
        return not all(map(is_of_torch, calls)) or (kind in constants and not is_of_torch(kind))

    kinds = nodes.keys() | constants
    registered = ({*objects.classes()} & kinds | {*filter(is_of_others, kinds)}) - pytree.BUILTIN_TYPES
    if not registered:
        return objects.registrations
    digests = TorchObjects(torch)
    descriptions = []
    for kind in registered:
        functions = tuple(nodes[kind])[1:] if kind in nodes else None  # they flatten and unflatten an object
        functions = functions and tuple(getattr(call, "__func__", call) for call in functions)
        descriptions.append(f"{full_name(kind)} {kind in constants} {digests.digest(functions)}")
    return f"{objects.registrations} {hashed(sorted(descriptions))}"


ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "absent"})()
"""Returned for a source whose value does not exist here."""
NEEDS_USER_CODE: Any = type("Runs", (), {"__repr__": lambda self: "a value that your code returns"})()
"""Returned for a source whose value only the user's code could return, such as a property's."""
_BUILT_IN = "built in"
_RUNS = "runs code"
_PRESENT = "held"
_CLASS_ONLY = "a "
_ATTRIBUTE = re.compile(r"(?:dict\()?\{0\}\.(\w+)")
_PLAIN = re.compile(
    r"\{0\}(?:\.\w+|\.__(?:kw)?defaults__\[[^{}]*\]|\[[^{}]*\])?|object\.__getattribute__\(\{0\}, '\w+'\)"
)
"""Templates of sources that only read an attribute, an element or a default of a function."""
_IMMUTABLES = (tuple, frozenset, range, slice)


class SourceValues:
    def __init__(self, frame: Mapping[str, Any], scope: Mapping[str, Any], env: Any) -> None:
        """`frame` has the locals and `scope` the globals; `env` has the names that torch's guards use."""
        self._names = {**env, "L": frame, "G": scope}
        self._known: dict[Any, Any] = {}
        self._running = Running(is_users_code)

    def get(self, source: Any) -> Any:
        """Return the value of a source, or NEEDS_USER_CODE if only user code can evaluate it."""
        if source not in self._known:
            base = getattr(source, "base", None)
            self._known[source] = self.read(expression_of(source), None if base is None else self.get(base))
        return self._known[source]

    def read(self, expression: Expression | None, base: Any, *, runs_nothing: bool = False) -> Any:
        """Return the value of a source, ABSENT without one, or NEEDS_USER_CODE if it needs the user's code.

        With `runs_nothing`, no code at all runs: the value lies in its base, else this is NEEDS_USER_CODE.
        """
        if expression is None or base is ABSENT:
            return ABSENT
        if base is NEEDS_USER_CODE or (runs_nothing and not _is_within(expression, base)):
            return NEEDS_USER_CODE
        if self._runs_code(expression, base):
            return NEEDS_USER_CODE
        try:
            return eval(expression.code, self._names, {"_": base})
        except Exception:  # the value is missing
            return ABSENT

    def _runs_code(self, expression: Expression, base: Any) -> bool:
        key = expression.key if expression.index is None else self.get(expression.index)
        if key is NEEDS_USER_CODE or (
            expression.attribute and self._running.attribute(base, expression.attribute)
        ):
            return True
        if expression.is_element and self._running.element(base):
            return True
        return expression.has_key and self._running.missing(base, key)


def _is_within(expression: Expression, base: Any) -> bool:
    """Return whether reading a source from its base runs no code: the base itself holds the value."""
    if not expression.is_plain:
        return False
    if expression.attribute:
        return holds_attribute(base, expression.attribute)
    return not expression.is_element or type(base) in (dict, list, tuple)


@dataclass(frozen=True, slots=True)
class Expression:
    """A source as a Python expression. It evaluates to what `Source.get_value` returns, but faster."""

    code: types.CodeType
    """The compiled expression, in which `_` is the value of the base source."""
    attribute: str = ""
    is_element: bool = False
    """The expression calls the `__getitem__` of the type of `_`."""
    has_key: bool = False
    """The expression reads an element, and `_` may be a dictionary."""
    key: Any = None
    """Key of that element; None if `index` is set."""
    index: Any = None
    is_plain: bool = False
    """The expression only reads an attribute or an element of `_`."""


def expression_of(source: Any) -> Expression | None:
    """Return the expression of a source; None if it has no value, such as torch's global state."""
    try:
        template = source._name_template
        if not hasattr(source, "base"):
            return Expression(_compile_expression(template))
        index = getattr(source, "index", None)
        is_source = hasattr(index, "get_value")
        return Expression(
            _compile_expression(template.format("_")),
            attribute=_attribute_of(template, source),
            is_element=template.startswith("{0}["),
            has_key=template.startswith(("{0}[", "dict.__getitem__({0}")),
            key=None if is_source else index,
            index=index if is_source else None,
            is_plain=not is_source and _PLAIN.fullmatch(template) is not None,
        )
    except Exception:
        return None


def _attribute_of(template: str, source: Any) -> str:
    """Return the name of the attribute that an expression reads from `_`; empty if it reads no attribute."""
    match = _ATTRIBUTE.match(template)
    if match is not None:
        return match[1]
    return str(source.member) if template.startswith(("getattr({0}", "object.__getattribute__({0}")) else ""


@functools.lru_cache(maxsize=4096)
def _compile_expression(expression: str) -> types.CodeType:
    """Compile an expression once, since many layers of a model share it."""
    return compile(expression, "<source>", "eval")


def fact_of(objects: Objects, value: Any, scope: Mapping[str, Any], *, complete: bool) -> str:
    """Return the digest of a value, or of its class alone; built-in names are facts of their own."""
    if value is ABSENT:
        return "absent"
    if value is NEEDS_USER_CODE:
        return _RUNS
    if value is builtins_of(scope):
        return _BUILT_IN
    if complete and type(value) is CodeType:
        return f"{objects.digest(value)} {hashed(str(_other_parts(part)) for part in code_tree(value))}"
    return objects.digest(value) if complete else f"{_CLASS_ONLY}{objects.digest(type(value))}"


def _other_parts(code: CodeType) -> tuple[Any, ...]:
    """Return what `==` compares of two code objects, and their digests leave out."""
    texts = [constant for constant in code.co_consts if type(constant) is str]
    return code.co_name, code.co_firstlineno, code.co_linetable, texts


def covers_value(fact: str) -> bool:
    return not fact.startswith(_CLASS_ONLY)


def same_objects(values: Sequence[Any]) -> list[int]:
    """Return for each value the index of the first that is the same object; its own index for a constant."""
    first: dict[int, int] = {}
    return [
        index
        if is_constant(value) or value is ABSENT or value is NEEDS_USER_CODE or type(value) in _IMMUTABLES
        else first.setdefault(id(value), index)
        for index, value in enumerate(values)
    ]


def builtins_of(scope: Mapping[str, Any]) -> Mapping[str, Any]:
    builtin_names: Any = scope["__builtins__"]
    return builtin_names if isinstance(builtin_names, dict) else builtin_names.__dict__


def name_rows(objects: Objects, scope: Mapping[str, Any], names: Iterable[str]) -> list[list[str]]:
    """Return rows [name, fact] for the globals `scope`: a constant's digest, or present, built in, absent."""
    builtin = builtins_of(scope)
    rows = []
    for name in names:
        if name in scope:
            value = scope[name]
            rows.append([name, objects.digest(value) if is_constant(value) else _PRESENT])
        else:
            value = builtin.get(name, ABSENT)
            digest = objects.digest(value) if is_constant(value) else _BUILT_IN
            rows.append([name, "absent" if value is ABSENT else digest])
    return rows


def present_names(scope: Mapping[str, Any], names: Set[str]) -> set[str]:
    """Return the names that a module has. A class lacks a protocol's method that it sets to None."""
    present = names & scope.keys()
    return present | {f"{name} is None" for name in present if scope[name] is None}


def place_of(value: Any) -> tuple[str, str] | None:
    """Return the module and qualified name of a function or class; None if they lead to another object."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(module, str) and isinstance(name, str):
        try:
            return (module, name) if object_at(module, name) is value else None
        except NoTrace:
            pass
    return None


def object_at(module: str, name: str) -> Any:
    """Return the object with this qualified name in an imported module; raise NoTrace if there is no such."""
    value: Any = module_by_name(module)
    for part in name.split("."):
        if isinstance(value, types.ModuleType):
            value = value.__dict__.get(part, ABSENT)
        elif isinstance(value, type):
            value = inspect.getattr_static(value, part, ABSENT)
            if isinstance(value, (staticmethod, classmethod)):
                value = value.__func__
            elif isinstance(value, property):
                value = value.fget
        else:
            value = ABSENT
    if value is ABSENT:
        raise NoTrace(f"{name} is not in {module}")
    return value


def is_users_code(code: types.CodeType) -> bool:
    return not is_installed(code.co_filename)


def global_of_dynamo(kind: str, place: str, scope: Mapping[str, Any]) -> Any:
    """Return the value of a global that Dynamo set for its code, or None for a missing module."""
    if kind == "builtins":
        return builtins_of(scope)
    if kind == "module":
        return sys.modules.get(place)
    return object_at(*place.split(" ", 1)) if kind == "object" else None


# --- the key of a frame: its code, and all settings and modes that are in force around it ----------

_CONFIGS = (
    *("torch._dynamo.config", "torch._functorch.config", "torch._inductor.config"),
    *("torch.compiler.config", "torch.fx.experimental._config"),
)
_WITHOUT_EFFECT = words(
    "cache_key_tag compile_threads cuda.cutlass_dir cutlass.cutlass_dir job_id worker_start_method",
    "xpu.cutlass_dir",
)
"""Settings that differ between folders and machines and don't affect a trace, or are in torch's keys."""
_RULES = (
    *("BUILTIN_INLINE_WHEN_CALLED", "FORCE_SKIP_FILES", "LEGACY_MOD_INLINELIST", "MOD_INLINELIST"),
    *("MOD_SKIPLIST", "SKIP_DIRS"),
)


def key_of(torch: ModuleType, frame: Frame, backend: Any, packages_digest: str, *, one_graph: bool) -> str:
    """Return the key of a frame, which includes `packages_digest`; NoTrace if it can have no trace."""
    kinds: dict[str, Any] = {name: type(value) for name, value in frame.values.items()}
    parts = [
        code_digest(frame.code),
        f"module {frame.scope.get('__name__')}",  # the module of functions that it creates
        *sorted(f"{name} {kind.__module__}.{kind.__qualname__}" for name, kind in kinds.items()),
        f"{one_graph} {_backend(torch, backend)}",
        *_in_force(torch),
        *_settings(),
        *_rules(torch),
        *([packages_digest] if packages_digest else []),
    ]
    return sha256("\n".join(parts).encode("utf-8", "surrogatepass"))


def _backend(torch: ModuleType, backend: Any) -> str:
    inner = torch._dynamo.eval_frame.innermost_backend(backend)
    if type(inner).__name__ != "_TorchCompileInductorWrapper" or type(inner).__module__ != "torch":
        raise NoTrace("its backend is not inductor")
    options = options_of(torch, backend)
    if options.get("triton.cudagraphs") or torch._inductor.config.triton.cudagraphs:
        raise NoTrace("it is compiled for CUDA graphs")
    return f"{inner.dynamic} {getattr(inner, 'name', None)} {_stable_text(dict(sorted(options.items())))}"


def options_of(torch: ModuleType, backend: Any) -> dict[str, Any]:
    options: dict[str, Any] = torch._dynamo.eval_frame.innermost_backend(backend).config
    return options


def _in_force(torch: ModuleType) -> Iterator[str]:
    """Return the state that affects any code; raise NoTrace for state that is not a plain value."""
    strict, escape = map(codecs.lookup_error, ("strict", "surrogateescape"))
    are_builtin = all(isinstance(original, BuiltinFunctionType) for original in (builtins.__import__, escape))
    if not are_builtin or strict is not codecs.strict_errors or escape.__name__ != "surrogateescape":
        raise NoTrace("__import__ or an error handler of codecs has been replaced")
    import torch._dynamo.variables.torch_function as modes

    suspended_modes = modes.torch_function_mode_stack_state_mgr.stack  # while Dynamo traces
    if suspended_modes or torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        raise NoTrace("a torch mode is in force")
    level = torch.autograd.forward_ad._current_level
    if torch._C._functorch.peek_interpreter_stack() is not None or level >= 0:
        raise NoTrace("a torch.func transform is in force")
    if torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
        raise NoTrace("hooks for saved tensors are in force")  # Dynamo inlines the graphs of some hooks
    if any(getattr(torch.nn.modules.module, name, None) for name in HOOKS):
        raise NoTrace("global module hooks are set")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        raise NoTrace("it runs in a distributed program")
    overrides = TORCHBEHAVIOR.overrides_cudagraphs
    if overrides and torch._dynamo.utils._get_cudagraph_override() is not None:
        raise NoTrace("torch._dynamo.override_cudagraphs is in force")
    if logs_compiles():
        raise NoTrace("a log handler reads torch's messages about tracing")
    yield f"torch {torch.__version__} {torch.version.git_version}"
    yield f"Python {sys.version} {sys.get_int_max_str_digits()} {locale.setlocale(locale.LC_ALL)}"
    yield f"small numbers {sys.float_info.min / 2 > 0}"  # torch.set_flush_denormal affects Python, too
    yield f"grad {torch.is_grad_enabled()} inference {torch.is_inference_mode_enabled()}"
    yield f"dtype {torch.get_default_dtype()} device {torch.get_default_device()}"
    yield f"threads {torch.get_num_threads()} cpu {torch.backends.cpu.get_cpu_capability()}"
    yield f"cuda {torch.cuda.is_available()} {torch.cuda.is_initialized()}"
    yield f"torch functions {torch._C._is_torch_function_enabled()}"
    keys = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    yield f"dispatch keys {[dispatch_keys.raw_repr() for dispatch_keys in keys]}"
    yield f"breaks raise {torch._dynamo.utils._get_error_on_graph_break()}"
    yield f"checks {torch._C._is_any_autocast_enabled()} {torch.is_autocast_cache_enabled()}"
    for device in torch._C._autocast_supported_devices():
        yield f"autocast {device} {torch.is_autocast_enabled(device)} {torch.get_autocast_dtype(device)}"
    yield from (f"{name} {value}" for name, value in flags(torch))
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    attention = (cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled())
    yield f"attention {(*attention, cuda.cudnn_sdp_enabled())}"
    yield f"cudnn {(cudnn.enabled, cudnn.benchmark, cudnn.deterministic)}"
    yield f"mkldnn {torch.backends.mkldnn.enabled}"


def _settings() -> Iterator[str]:
    """Yield each torch setting and environment variable that may change what torch traces."""
    for module in _CONFIGS:
        config: Any = sys.modules.get(module)
        if config is None:
            continue
        for name, value in sorted(config.get_config_copy().items()):
            if name in _WITHOUT_EFFECT or name in config._compile_ignored_keys:
                continue
            yield f"{module}.{name} {_stable_text(value)}"
    ignored = ("TORCHINDUCTOR_CACHE", "TORCH_LOGS")
    for name in sorted(os.environ):
        if name.startswith(("TORCH", "PYTORCH")) and not name.startswith(ignored):
            yield f"{name}={os.environ[name]}"


def _rules(torch: ModuleType) -> Iterator[str]:
    import torch._dynamo.trace_rules as trace_rules

    packages = os.path.dirname(os.path.dirname(os.path.abspath(str(torch.__file__)))) + os.sep
    python = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
    for name in _RULES:
        rules = (str(it).replace(packages, "").replace(python, "") for it in getattr(trace_rules, name, ()))
        yield f"{name} {' '.join(sorted(rules))}"


def _stable_text(value: Any) -> str:
    """Return a setting as a text that is the same in each process; NoTrace if it has none."""
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(_stable_text, value)))}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_stable_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_stable_text(key)}: {_stable_text(item)}' for key, item in value.items())}}}"
    if isinstance(value, FunctionType):
        return f"{value.__module__}.{value.__qualname__} {code_digest(value.__code__)}"
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    text = repr(value)
    if " at 0x" in text:
        raise NoTrace("a setting of the compiler has an object as its value")  # the text has its address
    return text
