"""Code that a user hands to torch to compile with: in settings, and as compilers."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any

from nbcache.core.fingerprints.known_code import cell_contents
from nbcache.torch_bridge import frames

__all__ = ["SETTINGS", "code_in_settings", "compilers"]

SETTINGS: Mapping[str, tuple[str, ...]] = {
    "torch._functorch.config": (
        "activation_memory_budget_runtime_estimator",
        "activation_memory_budget_solver",
        "joint_custom_pass",
    ),
    "torch._inductor.config": (
        "_fuse_ddp_communication_passes",
        "_post_fusion_custom_pass",
        "_pre_fusion_custom_pass",
        "aten_distributed_optimizations.custom_runtime_estimation",
        "bucket_all_gathers_fx_bucket_size_determinator",
        "bucket_all_reduces_fx_bucket_size_determinator",
        "bucket_reduce_scatters_fx_bucket_size_determinator",
        "custom_partitioner_fn",
        "external_matmul",
        "inductor_choices_class",
        "joint_custom_post_pass",
        "joint_custom_pre_pass",
        "post_grad_custom_post_pass",
        "post_grad_custom_pre_pass",
        "pre_grad_custom_pass",
        "reorder_for_compute_comm_overlap_passes",
    ),
}
"""Settings that hold code of the user's, by module.

torch's keys hold the names of some, of others what their `uuid()` says, and nothing of `joint_custom_pass`.
"""
_INDUCTORS = "torch._inductor.compile_fx"
_ADDED = frozenset({"compile_region_name", "get_decomp_fn"})
"""What compile_fx itself hands to `inner_compile`: a name, and the decompositions given to AOTAutograd."""


def code_in_settings() -> Iterator[tuple[str, Any]]:
    """Return the code that settings hold and torch has not put there, by the names of the settings."""
    for module, names in SETTINGS.items():
        config = sys.modules.get(module)
        for name in names:
            value = getattr(config, name, None)
            if value is None or value is (default := _default(config, name)):
                continue
            torchs = [*map(id, default)] if isinstance(default, (list, tuple)) else []
            for each in value if isinstance(value, (list, tuple)) else [value]:
                if each is not None and not isinstance(each, str) and id(each) not in torchs:
                    yield name, each
    common = sys.modules.get("torch._inductor.codegen.common")
    for device, value in getattr(common, "custom_backend_passes", {}).items():
        if value is not None:
            yield f"custom pass for {device}", value
    choices = _choices()
    if choices is not None:
        yield "the handler of choices", choices


def _choices() -> Any:
    """Return what others have given to `V.set_choices_handler`; None where nobody has."""
    virtualized = sys.modules.get("torch._inductor.virtualized")
    here = getattr(getattr(virtualized, "threadlocal", None), "__dict__", {})
    found = here.get(getattr(getattr(virtualized, "_choices", None), "_key", ""))
    by_setting = getattr(sys.modules.get("torch._inductor.config"), "inductor_choices_class", None)
    kind = type(found)
    is_torchs = kind.__module__.startswith("torch.") or kind is by_setting  # a setting counts by itself
    return None if is_torchs else found


def _default(config: Any, name: str) -> Any:
    return getattr(config._config.get(name), "default", None)


def compilers() -> list[tuple[str, Any]]:
    """Return what compile_fx and AOTAutograd, up the stack, were given to compile with and is not inductor's.

    Within itself, compile_fx wraps what it was given in settings that are in force around all of it.
    """
    inner: list[Any] = []
    for code in frames.read_all(frames.INNER_COMPILE):
        if isinstance(code, partial) and not code.args and {*code.keywords} <= _ADDED:
            code = code.func  # compile_fx has made it
        inner.append(code)
    aot = next(frames.read_frames(frames.COMPILERS[1]), None)
    given = [] if aot is None else [(each.name, aot.f_locals.get(each.name)) for each in frames.COMPILERS]
    compile_fx = sys.modules.get(_INDUCTORS)
    own: list[Any] = []
    if compile_fx is not None:
        own = [None, compile_fx.compile_fx_inner, *(inspect.unwrap(compile_fx.compile_fx).__defaults__ or ())]
    file = getattr(compile_fx, "__file__", None)
    return [
        *(("inner_compile", code) for code in inner if not _is_inductors(code, own, inner)),
        *((name, code) for name, code in given if code is not None and _file_of(code) != file),
    ]


def _is_inductors(code: Any, own: Sequence[Any], given: Sequence[Any]) -> bool:
    """Tell whether it is one of inductor's `own`, or what inductor has wrapped around one of `given`."""
    around = getattr(code, "__wrapped__", None) if isinstance(code, FunctionType) else None
    return any(code is each for each in own) or (around is not None and any(around is each for each in given))


def _file_of(code: Any) -> str | None:
    """Return the file of the function that a compiler is, or is made of."""
    for name in ("compiler_fn", "func", "__func__"):
        code = inspect.unwrap(getattr(code, name, code))
        if isinstance(code, FunctionType) and code.__name__ == "_wrapped_bw_compiler":  # Dynamo's
            code = inspect.unwrap(cell_contents(code)[0])
    return code.__code__.co_filename if isinstance(code, FunctionType) else None
