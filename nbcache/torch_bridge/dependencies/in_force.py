"""Settings, registries and code of the user that are in force while torch compiles a graph."""

from __future__ import annotations

import copyreg
import inspect
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

from nbcache.core.fingerprints.digests import Fingerprint
from nbcache.core.installed import Known, contents, is_users_module
from nbcache.torch_bridge import frames
from nbcache.torch_bridge.environment import release

__all__ = [
    "MODULE_HOOKS",
    "SETTINGS",
    "add_autocast",
    "add_graphs_autocast",
    "add_run_into",
    "code_in_settings",
    "compilers",
    "flags",
    "read_defaults",
    "settings_in",
]

_FLAGS: Mapping[str, Any] = {
    "_get_cublas_allow_fp16_accumulation": False,
    "_get_cudnn_enabled": True,
    "_get_cudnn_sdp_enabled": True,
    "_get_fa3_sdp_enabled": False,
    "_get_fa4_sdp_enabled": False,
    "_get_flash_sdp_enabled": True,
    "_get_math_sdp_allow_fp16_bf16_reduction": False,
    "_get_math_sdp_enabled": True,
    "_get_mem_efficient_sdp_enabled": True,
    "_get_mkldnn_deterministic": False,
    "_get_mkldnn_enabled": True,
    "_get_nnpack_enabled": True,
    "_get_overrideable_sdp_enabled": True,
    "_get_sdp_priority_order": [1, 2, 0, 3, 4],
}
"""Flags by which torch chooses operators while it traces, and their defaults (2.11 to 2.15).

They are functions of `torch._C`. torch's keys hold none of them; those that they hold are not here. The
defaults count where torch was imported before nbcache was loaded: elsewhere they are read from torch.
"""
_RELEASES = ((2, 11), (2, 15))
"""The first and the last release of torch that has these defaults."""
_PRECISIONS: Mapping[tuple[str, str], str] = {
    ("generic", "all"): "none",
    ("cuda", "all"): "none",
    ("cuda", "conv"): "tf32",
    ("cuda", "rnn"): "tf32",
    ("mkldnn", "all"): "none",
    ("mkldnn", "conv"): "none",
    ("mkldnn", "rnn"): "none",
}
"""Precisions of float32 by backend and operator, likewise; torch's keys hold that of CUDA's `matmul`."""
_defaults: dict[Any, Any] = {}
"""Both as torch began with them in this process, once they are read."""
_SETTINGS = (
    *("cpp_runtime_thread_count", "cuda_matmul_settings", "default_dtype"),
    *("deterministic_algorithms_settings", "inductor_config", "inductor_config_comms"),
)
"""Parts of torch's keys that say what the compiler is set to."""
_RANDOM = frozenset(
    {
        *("alpha_dropout", "alpha_dropout_", "bernoulli", "bernoulli_", "cauchy_", "dropout", "dropout1d"),
        *("dropout2d", "dropout3d", "dropout_", "exponential_", "feature_alpha_dropout", "feature_dropout"),
        *("geometric_", "gumbel_softmax", "log_normal_", "multinomial", "native_dropout", "normal"),
        *("normal_", "poisson", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like"),
        *("random_", "randperm", "rrelu", "rrelu_", "rsample", "sample", "uniform_"),
    }
)
"""Names of what draws from torch's default generators."""
_INITIALIZES = ("kaiming_", "orthogonal", "sparse_", "trunc_normal", "xavier_")
"""How the names begin of what initializes modules."""
_TAKES_OUT = frozenset(
    {
        *("_disable_current_modes", "disable_proxy_modes_tracing", "item", "maybe_disable_fake_tensor_mode"),
        *("no_dispatch", "numpy", "tolist", "unset_fake_temporarily"),
    }
)
"""Names of what makes plain numbers of tensors, or plain tensors of those that are traced."""
_ASK: Mapping[str, frozenset[str]] = {
    "torch.distributions.constraint_registry": frozenset({"biject_to", "transform_to"}),
    "torch.distributions.kl": frozenset({"kl_divergence"}),
}
"""By module, the functions that look things up in its registries; hooks are called by any module."""
MODULE_HOOKS = (
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
    "_global_buffer_registration_hooks",
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_module_registration_hooks",
    "_global_parameter_registration_hooks",
)
"""Names of the hooks of all modules in `torch.nn.modules.module`."""
_REGISTRIES: Mapping[str, tuple[str, ...]] = {
    "torch.distributions.constraint_registry": ("biject_to._registry", "transform_to._registry"),
    "torch.distributions.kl": ("_KL_REGISTRY",),
    "torch.nn.modules.module": MODULE_HOOKS,
}
"""Where torch's modules and distributions look up code of others, by module."""
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


def read_defaults(torch: ModuleType) -> None:
    """Take what torch says now for its defaults: it has just been imported."""
    _defaults.clear()
    _defaults.update(_values(torch))


def _values(torch: ModuleType) -> Iterator[tuple[Any, Any]]:
    """Return flags and precisions as they are, by names, and by backend and operator."""
    for name in _FLAGS:
        if (ask := getattr(torch._C, name, None)) is not None:
            yield name, ask()
    if (ask := getattr(torch._C, "_get_fp32_precision_getter", None)) is not None:
        for of in _PRECISIONS:
            yield of, ask(*of)


def flags(torch: ModuleType) -> Iterator[tuple[str, Any]]:
    """Return the flags that are not what torch begins with, each with its name.

    Where torch's defaults are unknown, return all flags. A key without them would also match graphs that were
    compiled under other flags.
    """
    defaults = _defaults
    if not defaults and _RELEASES[0] <= release(torch.__version__) <= _RELEASES[1]:
        defaults = {**_FLAGS, **_PRECISIONS}
    for name, value in _values(torch):
        if name not in defaults or value != defaults[name]:
            yield name if isinstance(name, str) else "precision of " + " ".join(name), value
    ask = getattr(torch._C, "_get_fp32_precision_getter", None)
    if ask and (value := ask("mkldnn", "matmul")) not in ("none", "ieee", ask("cuda", "matmul")):
        yield "precision of mkldnn matmul", value
    if not torch.backends.mha.get_fastpath_enabled():
        yield "torch.backends.mha", "off"
    einsum = torch.backends.opt_einsum
    if einsum.enabled is not einsum.is_available() or einsum.strategy not in (None, "auto"):
        yield "torch.backends.opt_einsum", (bool(einsum.enabled), einsum.strategy)


def add_autocast(torch: ModuleType, state: Fingerprint) -> None:
    """Add autocast's state on each device."""
    for device in torch._C._autocast_supported_devices():
        state.note("autocast", device, torch.is_autocast_enabled(device))
        state.note(torch.get_autocast_dtype(device))


def add_graphs_autocast(
    torch: ModuleType, state: Fingerprint, operators: Collection[Any], details: Any
) -> None:
    """Add autocast's state where a graph runs under it, or enters it without a dtype of its own.

    The key that is made of `details` leaves the dtype out on torch 2.11, and on later ones, until 2.15, where
    autocast is off around the graph.
    """
    under = torch._C._is_any_autocast_enabled() and not hasattr(details, "autocast_state")
    if under or any(each is torch.amp.autocast_mode._enter_autocast for each in operators):
        add_autocast(torch, state)


def settings_in(details: Any) -> str:
    """Return what a key of torch's says that the compiler is set to."""
    return str([getattr(details, name, None) for name in _SETTINGS])


def add_run_into(torch: ModuleType, state: Fingerprint, known: Known, *, passes: bool) -> None:
    """Add what the code that was added may run into: random numbers, hooks, and registries of torch's.

    `passes` says that some of it is given graphs: there tensors are real, and elsewhere they are traced,
    unless the code takes them out.
    """
    names = state.reads.attributes | state.reads.functions
    if not names:
        return  # flags and dtypes, and no code
    draws = bool(names & _RANDOM) or any(name.startswith(_INITIALIZES) for name in names)
    if draws and (passes or names & _TAKES_OUT):
        state.note("random numbers", *_generators(torch))
    for place, registry in _registries(names):
        for key in sorted(registry, key=str):
            if not known.made(registry[key]):
                state.note(place)
                state.add((key, registry[key]), f"an entry of {place}")
    if names & {"copy", "deepcopy", "dumps"}:
        for kind, reduce in sorted(copyreg.dispatch_table.items(), key=lambda each: each[0].__qualname__):
            if is_users_module(reduce.__module__):
                state.add((kind, reduce), "how it is copied")
    if names & {"warn", "warn_explicit"}:
        for action, message, category, module, line in warnings.filters:
            if action == "error":
                state.note(action, *(getattr(each, "pattern", each) for each in (message, module)), line)
                state.add(category)


def _generators(torch: ModuleType) -> Iterator[bytes]:
    """Return the states of torch's default generators; none of a device that is not in use."""
    yield torch.get_rng_state().numpy().tobytes()
    if torch.cuda.is_initialized():
        for state in torch.cuda.get_rng_state_all():
            yield state.numpy().tobytes()


def _registries(read: Set[str]) -> Iterator[tuple[str, Mapping[Any, Any]]]:
    """Return the registries that are not empty, and that code may look things up in by these names."""
    for module, names in _REGISTRIES.items():
        if module in _ASK and not read & _ASK[module]:
            continue
        for name in names:
            found: Any = sys.modules.get(module)
            for part in name.split("."):
                found = getattr(found, part, None)
            if found:
                yield f"{module}.{name}", found


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
            code = inspect.unwrap(contents(code)[0])
    return code.__code__.co_filename if isinstance(code, FunctionType) else None
