"""torch's tables and classes in which it looks up code and to which third parties may add."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from operator import attrgetter
from types import ModuleType
from typing import Any

__all__ = [
    "EXPORT_TABLES",
    "GENERATORS",
    "SCRATCH",
    "SHARDING_TABLES",
    "TABLES",
    "UNREACHED",
    "all_tables",
    "argument_classes",
    "is_generator",
    "is_special",
    "namespaces",
    "subclasses",
    "tables_of",
]

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
"""Module → tables in which torch looks up code for operators and devices.

A table is recorded when its module has been imported: torch's own entries are complete by then.
"""
SHARDING_TABLES = TABLES["torch.distributed.tensor"]
"""Tables of sharding rules; torch itself adds entries while it compiles."""
EXPORT_TABLES = TABLES["torch._subclasses.fake_impls"]
"""Tables from which `torch.export` removes entries."""
UNREACHED = frozenset(
    {
        *("compile", "export", "hub", "load", "manual_seed", "save", "seed", "set_default_device"),
        *("set_default_dtype", "set_default_tensor_type", "set_deterministic_debug_mode", "set_num_threads"),
        *("set_float32_matmul_precision", "set_num_interop_threads", "set_printoptions", "set_rng_state"),
        *("set_warn_always", "use_deterministic_algorithms"),
    }
)
"""Functions in `torch` that no graph reaches; users replace some of them."""
_ARGUMENT_MODULES = (
    "torch._inductor.ir",
    "torch._inductor.pattern_matcher",
    "torch.autograd.function",
    "torch.fx.graph",
    "torch.fx.graph_module",
    "torch.fx.node",
)
"""Modules of classes whose instances torch passes to lowerings, patterns, passes and autograd formulas."""
SCRATCH = "torch.fx.graph_module._CodeOnlyModule"
"""The class in which torch stores the code of each graph that it unpickles, for a moment."""
_GENERATOR_SUFFIXES = ("Overrides", "OpsMixin")
"""Suffixes of the names of classes that generate code for operators."""
GENERATORS = tuple(f"torch._inductor.codegen.{name}" for name in ("common", "cpp", "triton"))
"""The modules of these classes."""


def tables_of(module: ModuleType | None) -> list[tuple[str, Any]]:
    """Return name and table of each table of a module in `TABLES` that this torch version has."""
    tables = []
    for name in TABLES.get(getattr(module, "__name__", ""), ()):
        table: Any = _attribute_at(module, name)
        if name == "global_decomposition_table":
            tables += [
                (f"{kind} decompositions", decompositions) for kind, decompositions in (table or {}).items()
            ]
        elif table is not None:
            tables.append((name, table))
    return tables


def _attribute_at(module: Any, path: str) -> Any:
    """Return the value at a dotted path of attributes, or None."""
    try:
        return attrgetter(path)(module)
    except AttributeError:
        return None


def all_tables() -> Iterator[tuple[str, Any]]:
    """Yield name and table of each table in imported modules."""
    for module in TABLES:
        yield from tables_of(sys.modules.get(module))


def namespaces(torch: ModuleType) -> list[ModuleType]:
    """Return the modules whose functions graphs call, directly or indirectly."""
    functional = torch.nn.functional
    return [torch, functional, torch.functional, torch._C._nn, torch.fft, torch.linalg, torch.special]


def subclasses(kind: type) -> Iterator[type]:
    """Yield all subclasses of a class, some more than once."""
    direct: list[type] = kind.__subclasses__()
    for subclass in direct:
        yield subclass
        yield from subclasses(subclass)


def argument_classes() -> Iterator[type]:
    """Yield the classes of the objects other than tensors that torch passes to third-party code."""
    for name in _ARGUMENT_MODULES:
        module = sys.modules.get(name)
        for value in list(vars(module).values()) if module is not None else ():
            if isinstance(value, type) and value.__module__ == name and f"{name}.{value.__name__}" != SCRATCH:
                yield value


def is_generator(value: Any) -> bool:
    """Return whether a value is a class that generates code for operators."""
    return isinstance(value, type) and value.__name__.endswith(_GENERATOR_SUFFIXES)


def is_special(name: str) -> bool:
    """Return whether Python itself looks up an attribute of this name."""
    return name.startswith("__") and name.endswith("__")
