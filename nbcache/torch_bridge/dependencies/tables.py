"""Where torch looks up code that others may add to: tables, patterns, and classes that write code."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from operator import attrgetter
from types import ModuleType
from typing import Any

__all__ = [
    "DEREGISTERED",
    "GENERATORS",
    "OF_SHARDING",
    "SCRATCH",
    "TABLES",
    "UNREACHED",
    "all_tables",
    "handed_over",
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
"""Where torch looks up code for operators and devices, and others may add to, by module.

The table is noted when the module is imported: what torch itself puts there is there by then.
"""
OF_SHARDING = TABLES["torch.distributed.tensor"]
"""Tables that say how operators shard; torch itself adds some when it compiles."""
DEREGISTERED = TABLES["torch._subclasses.fake_impls"]
"""Tables that `torch.export` takes entries out of."""
UNREACHED = frozenset(
    {
        *("compile", "export", "hub", "load", "manual_seed", "save", "seed", "set_default_device"),
        *("set_default_dtype", "set_default_tensor_type", "set_deterministic_debug_mode", "set_num_threads"),
        *("set_float32_matmul_precision", "set_num_interop_threads", "set_printoptions", "set_rng_state"),
        *("set_warn_always", "use_deterministic_algorithms"),
    }
)
"""Names in `torch` that no graph runs into; people replace some of them."""
_HANDED_OVER = (
    "torch._inductor.ir",
    "torch._inductor.pattern_matcher",
    "torch.autograd.function",
    "torch.fx.graph",
    "torch.fx.graph_module",
    "torch.fx.node",
)
"""Modules whose classes formulas, lowerings, patterns and passes are given instances of."""
SCRATCH = "torch.fx.graph_module._CodeOnlyModule"
"""The class that torch puts the code of each graph into that it unpickles, to read it at once."""
_GENERATORS = ("Overrides", "OpsMixin")
"""What the names of classes end with that write code for operators."""
GENERATORS = tuple(f"torch._inductor.codegen.{name}" for name in ("common", "cpp", "triton"))
"""The modules of those classes."""


def tables_of(module: ModuleType | None) -> list[tuple[str, Any]]:
    """Return the tables of one of the modules `TABLES` that this torch has, with their names."""
    found = []
    for name in TABLES.get(getattr(module, "__name__", ""), ()):
        table: Any = _at(module, name)
        if name == "global_decomposition_table":
            found += [(f"{kind} decompositions", each) for kind, each in (table or {}).items()]
        elif table is not None:
            found.append((name, table))
    return found


def _at(module: Any, path: str) -> Any:
    """Return what stands at a path of attributes; None where a part of it is not there."""
    try:
        return attrgetter(path)(module)
    except AttributeError:
        return None


def all_tables() -> Iterator[tuple[str, Any]]:
    """Return the tables of all the modules that are imported, with their names."""
    for module in TABLES:
        yield from tables_of(sys.modules.get(module))


def namespaces(torch: ModuleType) -> list[ModuleType]:
    """Return the modules whose functions graphs call, and those call in turn."""
    functional = torch.nn.functional
    return [torch, functional, torch.functional, torch._C._nn, torch.fft, torch.linalg, torch.special]


def subclasses(kind: type) -> Iterator[type]:
    """Return all that inherit from a class, some more than once."""
    below: list[type] = kind.__subclasses__()
    for each in below:
        yield each
        yield from subclasses(each)


def handed_over() -> Iterator[type]:
    """Return the classes of what torch hands to code that others have written, beside tensors."""
    for name in _HANDED_OVER:
        module = sys.modules.get(name)
        for value in list(vars(module).values()) if module is not None else ():
            if isinstance(value, type) and value.__module__ == name and f"{name}.{value.__name__}" != SCRATCH:
                yield value


def is_generator(value: Any) -> bool:
    """Tell whether a module's attribute is a class that writes code for operators."""
    return isinstance(value, type) and value.__name__.endswith(_GENERATORS)


def is_special(name: str) -> bool:
    """Tell whether Python itself looks an attribute of this name up."""
    return name.startswith("__") and name.endswith("__")
