"""Changes by third parties to torch's tables, modules and classes.

The author of an entry is not always the one who registered it: if a user registers a torch lowering in the
place of another, torch compiles something else. So nbcache records torch's entries as soon as torch has
created them, and later finds replaced, added and removed entries by key and identity. If torch was imported
before nbcache was loaded, entries that are not torch's code are changes, too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from importlib.metadata import PackageNotFoundError, requires
from operator import is_
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from nbcache.keys.fingerprints.code import words
from nbcache.keys.fingerprints.known_code import KnownPackages
from nbcache.keys.fingerprints.objects import DESCRIPTIVE

_PROPAGATOR = "DTensor._op_dispatcher.sharding_propagator."
TABLES: Mapping[str, tuple[str, ...]] = {
    "torch._decomp": ("global_decomposition_table",),
    "torch._functorch.aot_autograd": ("aot_autograd_decompositions",),
    "torch._higher_order_ops.utils": ("registered_hop_fake_fns",),
    "torch._inductor.codegen.common": ("device_codegens", "device_op_overrides_dict"),
    "torch._inductor.decomposition": ("decompositions", "extra_random_decomps"),
    "torch._inductor.fx_passes.group_batch_fusion": ("POST_GRAD_FUSIONS", "PRE_GRAD_FUSIONS"),
    "torch._inductor.fx_passes.post_grad": ("noop_registry",),
    "torch._inductor.fx_passes.reinplace": ("inplaceable_ops",),
    "torch._inductor.lowering": ("_maybe_layout_constraints", "lowerings", "user_lowerings"),
    "torch._subclasses.complex_tensor._ops": ("common.COMPLEX_OPS_TABLE",),
    "torch._subclasses.fake_impls": ("op_implementations_checks", "op_implementations_dict"),
    "torch.distributed.tensor": (
        "DTensor._op_dispatcher._custom_op_handlers",
        f"{_PROPAGATOR}op_single_dim_strategy_funcs",
        f"{_PROPAGATOR}op_strategy_funcs",
        f"{_PROPAGATOR}op_to_rules",
        f"{_PROPAGATOR}op_to_schema_info",
        f"{_PROPAGATOR}op_to_schema_info_for_single_dim_strategy",
    ),
    "torch.fx.node": ("_side_effectful_functions",),
    "torch.masked.maskedtensor._ops_refs": ("_MASKEDTENSOR_DISPATCH_TABLE", "_MASKEDTENSOR_FUNCTION_TABLE"),
    "torch.nested._internal.ops": ("JAGGED_OPS_TABLE",),
}
"""Module → tables of code, recorded after its import: torch's own entries are complete by then."""
SHARDING_TABLES = TABLES["torch.distributed.tensor"]
"""Tables of sharding rules; torch itself adds entries while it compiles."""
EXPORT_TABLES = TABLES["torch._subclasses.fake_impls"]
"""Tables from which `torch.export` removes entries."""
UNREACHED = words(
    "compile export hub load manual_seed save seed set_default_device set_default_dtype",
    "set_default_tensor_type set_deterministic_debug_mode set_num_threads set_float32_matmul_precision",
    "set_num_interop_threads set_printoptions set_rng_state set_warn_always use_deterministic_algorithms",
)
"""Functions in `torch` that no graph reaches; users replace some of them."""
_ARGUMENT_MODULES = (
    *("torch._inductor.ir", "torch._inductor.pattern_matcher", "torch.autograd.function"),
    *("torch.fx.graph", "torch.fx.graph_module", "torch.fx.node"),
)
"""Modules of classes whose instances torch passes to lowerings, patterns, passes and autograd formulas."""
SCRATCH = "torch.fx.graph_module._CodeOnlyModule"
"""The class in which torch stores the code of each graph that it unpickles, for a moment."""
_GENERATOR_SUFFIXES = ("Overrides", "OpsMixin")
GENERATORS = tuple(f"torch._inductor.codegen.{name}" for name in ("common", "cpp", "triton"))
ABSENT = "taken out"
"""The value of an entry that was removed. Digests contain this text."""
_IGNORED = DESCRIPTIVE | {
    *("__abstractmethods__", "__builtins__", "__format__", "__repr__", "__str__", "__warningregistry__"),
    *("___has_generation_tag_patch", "___needs_generation_tag_patch"),
}
"""Attributes that hold texts, or that Python and torch set at run time."""
_TORCH_WRAPPERS = (
    *("_disable_dynamo.", "install_generation_tagging_init."),
    "TritonKernelOverrides._setup_libdevice_routing.",
)
"""Prefixes of the qualified names of wrappers that torch itself installs in its modules and classes."""
_COMPILER = (
    *("torch._decomp", "torch._functorch.", "torch._higher_order_ops.", "torch._inductor.", "torch._library"),
    *("torch._meta_registrations", "torch._prims", "torch._refs", "torch._subclasses.", "torch.fx."),
)
_PLAIN = (bool, bytes, complex, float, int, str, tuple)
"""Types of attributes that hold settings, which users may set."""
_INERT = frozenset({*_PLAIN, dict, frozenset, list, ModuleType, set, type(None)})
_REQUIREMENTS = words("filelock jinja2 mpmath networkx numpy optree sympy torchgen")
"""Packages from which torch imports functions; its metadata list more."""


class Change(NamedTuple):
    """A third-party entry; `replaced` says that torch had an entry of this key."""

    key: Any
    value: Any
    replaced: bool


class _Record:
    """torch's entries of one table, module or class, and all of its entries at the last comparison."""

    def __init__(self, owner: Any, torch_entries: Mapping[Any, Any], late: bool) -> None:
        self.owner = owner
        self.torch_entries = dict(torch_entries)
        self.late = late
        self.keys: tuple[Any, ...] = ()
        self.values: tuple[Any, ...] = ()
        self.changes: Collection[Change] | None = None

    def is_unchanged(self, entries: Mapping[Any, Any]) -> bool:
        return _are_same(entries.values(), self.values) and _are_same(entries, self.keys)


class Originals:
    """Records torch's entries of tables, modules and classes, and finds third-party changes."""

    def __init__(self, is_library_code: Callable[[Any], bool]) -> None:
        self._is_library_code = is_library_code
        self._records: dict[int, _Record] = {}

    def record(self, owner: Any, *, late: bool, torch_entries: Mapping[Any, Any] | None = None) -> None:
        """Record an owner's entries as torch's; `late`: third parties may have changed them."""
        self._records.setdefault(
            id(owner), _Record(owner, _entries(owner) if torch_entries is None else torch_entries, late)
        )

    def record_entry(self, table: Any, key: Any) -> None:
        recorded = self._records.get(id(table))
        if recorded is not None and key in table:
            recorded.torch_entries[key] = table[key]
            recorded.changes = None

    def forget(self, owner: Any) -> None:
        self._records.pop(id(owner), None)

    def torch_entries(self, owner: Any) -> Mapping[Any, Any]:
        self.changes(owner)
        return self._records[id(owner)].torch_entries

    def is_recorded(self, owner: Any) -> bool:
        return id(owner) in self._records

    def changes(self, owner: Any) -> Collection[Change]:
        """Return the third-party entries of a recorded owner; removed entries come last."""
        recorded = self._records[id(owner)]
        entries = dict(_entries(owner))  # other threads may change the owner
        if recorded.late:
            entries_of_torch = recorded.torch_entries.items()
            recorded.torch_entries = {
                key: value for key, value in entries_of_torch if self._is_library_code(_code(owner, value))
            }
            recorded.late = False
        if recorded.changes is None or not recorded.is_unchanged(entries):
            if isinstance(owner, (list, tuple)):
                recorded.changes = [*_changed_elements(recorded.torch_entries, entries)]
            else:
                recorded.changes = [*self._differences(recorded, entries)]
            recorded.keys, recorded.values = tuple(entries), tuple(entries.values())
        return recorded.changes

    def _differences(self, recorded: _Record, entries: Mapping[Any, Any]) -> Iterator[Change]:
        owner, torch_entries = recorded.owner, recorded.torch_entries
        has_names = isinstance(owner, (type, ModuleType))
        for key, value in entries.items():
            if torch_entries.get(key, ABSENT) is value or (has_names and self._has_no_effect(key, value)):
                continue
            if key not in torch_entries and isinstance(owner, type) and _from_bases(owner, key) is value:
                continue  # a replacement of an inherited attribute was undone
            yield Change(key, value, key in torch_entries or (has_names and _declares(owner, key)))
        for key in torch_entries:
            if key not in entries:
                yield Change(key, ABSENT, True)

    def _has_no_effect(self, name: str, value: Any) -> bool:
        """Return whether an attribute has no effect, or was set by torch itself at run time."""
        if name in _IGNORED or isinstance(value, ModuleType):
            return True
        function = getattr(value, "__func__", value)
        code = function.func if isinstance(function, partial) else function
        if not isinstance(code, FunctionType):
            return False
        return code.__code__.co_qualname.startswith(_TORCH_WRAPPERS) and self._is_library_code(function)


class Replacements:
    """Finds third-party functions in modules and classes of torch's compiler."""

    def __init__(self, known: KnownPackages) -> None:
        self._known = known
        self._examined: set[str] = set()
        self._places: dict[str, type | ModuleType] = {}
        """Name → the compiler's modules and the classes that they define."""
        self._snapshots: dict[str, tuple[Collection[Any], list[Any]]] = {}
        """Name → a view of the current attributes, and their values at the last examination."""
        self._others: dict[str, list[tuple[str, Any]]] = {}

    def attributes(self) -> list[tuple[str, Any]]:
        imported = sys.modules.keys() - self._examined
        for name in (name for name in imported if name.startswith(_COMPILER)):
            module = sys.modules.get(name)
            if module is not None and self._known.has_file(getattr(module, "__file__", None) or ""):
                self._places.setdefault(name, module)  # a compiled graph's module has another file
        self._examined |= imported
        places = list(self._places.items())
        for place, owner in places:
            snapshot = self._snapshots.get(place)
            if snapshot is None or not _are_same(*snapshot):
                places += self._examine(place, owner)
        return [item for place in sorted(self._others) for item in self._others[place]]

    def _examine(self, place: str, owner: type | ModuleType) -> Iterator[tuple[str, type]]:
        """Examine a module or class; yield the classes of a module that have not been examined."""
        attributes = vars(owner)
        entries = list(attributes.items())
        self._snapshots[place] = attributes.values(), [value for _, value in entries]
        items = [(f"{place}.{key}", value) for key, value in entries if self._is_third_party(owner, value)]
        items = [item for item in items if item[0] != f"{SCRATCH}.forward"]
        if items:
            self._others[place] = items
        else:
            self._others.pop(place, None)
        for key, value in entries if isinstance(owner, ModuleType) else ():
            name = f"{place}.{key}"
            if isinstance(value, type) and value.__module__ == place and name not in self._places:
                self._places[name] = value
                yield name, value

    def _is_third_party(self, owner: Any, value: Any) -> bool:
        """Return whether an attribute of a module or class is third-party code or its callable object."""
        kind = type(value)
        if kind is FunctionType:
            return self._is_third_party_function(owner, value)
        if kind in _INERT:
            return False
        if issubclass(kind, MethodType) and self._is_third_party_class(type(value.__self__)):
            return True
        if issubclass(kind, (staticmethod, classmethod, MethodType)):
            return self._is_third_party(owner, value.__func__)
        if issubclass(kind, property):
            return self._is_third_party(owner, value.fget)
        if issubclass(kind, partial):
            parts = (value.func, *value.args, *value.keywords.values())
            return any(self._is_third_party(owner, part) for part in parts)
        if issubclass(kind, type):
            return self._known.is_user_module(value.__module__)  # torch imports classes of packages
        return callable(value) and self._is_third_party_class(kind)

    def _is_third_party_function(self, owner: Any, function: FunctionType) -> bool:
        in_class = isinstance(owner, type)
        if self._known.has_file(function.__code__.co_filename):
            wrapped = None if in_class else getattr(function, "__wrapped__", None)
            if not isinstance(wrapped, FunctionType) or self._known.has_file(wrapped.__code__.co_filename):
                return False
        elif in_class and (
            self._known.is_library_method(owner, function) or self._is_torch_generated(function)
        ):
            return False
        return (function.__module__ or "").partition(".")[0] not in _requirements()

    def _is_torch_generated(self, function: FunctionType) -> bool:
        """Return whether torch may have generated a function from a string, perhaps outside of a module."""
        module = function.__globals__.get("__name__")
        from_string = function.__code__.co_filename == "<string>"
        return from_string and (not isinstance(module, str) or self._known.has_module(module))

    def _is_third_party_class(self, kind: type) -> bool:
        """Return whether a class is a mock or neither Python's, torch's nor a requirement's."""
        module = kind.__module__
        if not isinstance(module, str) or module.startswith("unittest."):
            return True
        package = module.partition(".")[0]
        return package not in _requirements() and not self._known.has_module(package)


@cache
def _requirements() -> Collection[str]:
    """Return the packages from which torch imports functions: its requirements and some others."""
    try:
        required = requires("torch") or []
    except PackageNotFoundError:
        required = []
    names = (re.match(r"[\w.-]*", line) for line in required)
    return _REQUIREMENTS | {name[0].lower().replace("-", "_") for name in names if name is not None}


def _are_same(values: Collection[Any], previous: Sequence[Any]) -> bool:
    try:
        return len(values) == len(previous) and all(map(is_, values, previous))
    except RuntimeError:  # another thread changed it
        return False


def _changed_elements(torch_entries: Mapping[Any, Any], entries: Mapping[Any, Any]) -> Iterator[Change]:
    current, original = {*map(id, entries.values())}, {*map(id, torch_entries.values())}
    for number, value in entries.items():
        if id(value) not in original:
            yield Change(number, value, False)
    for number, value in torch_entries.items():
        if id(value) not in current:
            yield Change(number, ABSENT, True)


def _code(owner: Any, value: Any) -> Any:
    """Return the part of an owner's value that may be third-party code."""
    if isinstance(owner, ModuleType) and isinstance(value, type):  # imported for annotations
        return None
    return value.fget if isinstance(value, property) else getattr(value, "__func__", value)


def _entries(owner: Any) -> Mapping[Any, Any]:
    if isinstance(owner, (list, tuple)):
        return dict(enumerate(owner))
    if isinstance(owner, set):
        return {function: function for function in sorted(owner, key=_name)}
    return vars(owner) if isinstance(owner, (type, ModuleType)) else owner


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or function)


def _from_bases(owner: type, name: str) -> Any:
    return next((vars(base)[name] for base in owner.__mro__[1:] if name in vars(base)), ABSENT)


def _declares(owner: Any, name: str) -> bool:
    """Return whether a class inherits this name, or the name occurs in the module's source."""
    if isinstance(owner, type) and _from_bases(owner, name) is not ABSENT:
        return True
    module = _module_of(owner)
    return module is not None and name in _names_in(module)


def may_be_set(owner: type | ModuleType, name: str, value: Any) -> bool:
    """Return whether a third party may have set an attribute that is plain, in C, or not in the source."""
    module = _module_of(owner)
    return isinstance(value, _PLAIN) or module is None or name not in (_names_in(module) or (name,))


def _module_of(owner: type | ModuleType) -> ModuleType | None:
    return owner if isinstance(owner, ModuleType) else sys.modules.get(owner.__module__)


@lru_cache(maxsize=64)
def _names_in(module: ModuleType) -> Collection[str]:
    """Return the names in a module's code object and one level below it; none for a module in C."""
    try:
        code = module.__spec__.loader.get_code(module.__name__)  # type: ignore[union-attr]
    except Exception:  # the module has no source
        code = None
    if code is None:
        return ()
    parts = [code, *(part for part in code.co_consts if isinstance(part, CodeType))]
    return {name for part in parts for name in part.co_names}


def tables_of(module: ModuleType | None) -> list[tuple[str, Any]]:
    tables = []
    for name in TABLES.get(getattr(module, "__name__", ""), ()):
        table: Any = module
        for part in name.split("."):
            table = getattr(table, part, None)
        if name == "global_decomposition_table":
            tables += [(f"{kind} decompositions", entries) for kind, entries in (table or {}).items()]
        elif table is not None:
            tables.append((name, table))
    return tables


def all_tables() -> Iterator[tuple[str, Any]]:
    for module in TABLES:
        yield from tables_of(sys.modules.get(module))


def namespaces(torch: ModuleType) -> list[ModuleType]:
    """Return the modules whose functions graphs call, directly or indirectly."""
    functional = torch.nn.functional
    return [torch, functional, torch.functional, torch._C._nn, torch.fft, torch.linalg, torch.special]


def subclasses_of(cls: type) -> set[type]:
    classes, subclasses = [cls], set[type]()
    while classes:
        added: set[type] = {*type.__subclasses__(classes.pop())} - subclasses
        subclasses |= added
        classes += added
    return subclasses


def argument_classes() -> Iterator[type]:
    for name in _ARGUMENT_MODULES:
        module = sys.modules.get(name)
        for value in list(vars(module).values()) if module is not None else ():
            if isinstance(value, type) and value.__module__ == name and f"{name}.{value.__name__}" != SCRATCH:
                yield value


def is_generator(value: Any) -> bool:
    return isinstance(value, type) and value.__name__.endswith(_GENERATOR_SUFFIXES)


def is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
