"""What is in force in the process while torch traces a graph, and what code runs into without naming it."""

from __future__ import annotations

import copyreg
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping, Set
from types import ModuleType
from typing import Any

from nbcache.core.fingerprints.digests import Fingerprint
from nbcache.core.fingerprints.known_code import KnownPackages
from nbcache.torch_bridge.environment import release

__all__ = ["add_autocast", "add_graphs_autocast", "add_run_into", "flags", "read_defaults", "settings_in"]

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
_REGISTRIES: Mapping[str, tuple[str, ...]] = {
    "torch.distributions.constraint_registry": ("biject_to._registry", "transform_to._registry"),
    "torch.distributions.kl": ("_KL_REGISTRY",),
    "torch.nn.modules.module": (
        "_global_backward_hooks",
        "_global_backward_pre_hooks",
        "_global_buffer_registration_hooks",
        "_global_forward_hooks",
        "_global_forward_pre_hooks",
        "_global_module_registration_hooks",
        "_global_parameter_registration_hooks",
    ),
}
"""Where torch's modules and distributions look up code of others, by module."""


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


def add_run_into(torch: ModuleType, state: Fingerprint, known: KnownPackages, *, passes: bool) -> None:
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
            if not known.is_library_code(registry[key]):
                state.note(place)
                state.add((key, registry[key]), f"an entry of {place}")
    if names & {"copy", "deepcopy", "dumps"}:
        for kind, reduce in sorted(copyreg.dispatch_table.items(), key=lambda each: each[0].__qualname__):
            if known.is_user_module(reduce.__module__):
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
