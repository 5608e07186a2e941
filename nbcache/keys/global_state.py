"""Process-wide state while torch traces a graph: flags, autocast, random numbers, hooks and registries."""

from __future__ import annotations

import copyreg
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping, Set
from types import ModuleType
from typing import Any

from nbcache.keys.fingerprints.code import words
from nbcache.keys.fingerprints.digests import Fingerprint
from nbcache.keys.fingerprints.known_code import KnownPackages
from nbcache.torch_bridge.torch_behavior import release

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
"""Functions of `torch._C` by which torch chooses operators while it traces → defaults (torch 2.11 to 2.15).

These defaults hold if torch was imported before nbcache was loaded; otherwise nbcache reads them from torch.
"""
_RELEASES = ((2, 11), (2, 15))
_PRECISIONS: Mapping[tuple[str, str], str] = {
    **dict.fromkeys((("generic", "all"), ("cuda", "all")), "none"),
    **dict.fromkeys((("cuda", "conv"), ("cuda", "rnn")), "tf32"),
    **dict.fromkeys((("mkldnn", "all"), ("mkldnn", "conv"), ("mkldnn", "rnn")), "none"),
}
"""Default float32 precisions by backend and operator; torch's keys cover CUDA's `matmul`."""
_defaults: dict[Any, Any] = {}
"""Flags and precisions at torch's import in this process, if nbcache could read them."""
_SETTINGS = (
    *("cpp_runtime_thread_count", "cuda_matmul_settings", "default_dtype"),
    *("deterministic_algorithms_settings", "inductor_config", "inductor_config_comms"),
)
_RANDOM_FUNCTIONS = words(
    "alpha_dropout alpha_dropout_ bernoulli bernoulli_ cauchy_ dropout dropout1d dropout2d dropout3d",
    "dropout_ exponential_ feature_alpha_dropout feature_dropout geometric_ gumbel_softmax log_normal_",
    "multinomial native_dropout normal normal_ poisson rand rand_like randint randint_like randn randn_like",
    "random_ randperm rrelu rrelu_ rsample sample uniform_",
)
"""Functions and methods that draw from torch's default generators."""
_INITIALIZERS = ("kaiming_", "orthogonal", "sparse_", "trunc_normal", "xavier_")
_LEAVES_TRACE = words(
    "_disable_current_modes disable_proxy_modes_tracing item maybe_disable_fake_tensor_mode no_dispatch",
    "numpy tolist unset_fake_temporarily",
)
"""Names of functions that convert tensors to numbers, or traced tensors to real ones."""
_REGISTRY_READERS: Mapping[str, frozenset[str]] = {
    "torch.distributions.constraint_registry": frozenset({"biject_to", "transform_to"}),
    "torch.distributions.kl": frozenset({"kl_divergence"}),
}
"""Module → functions that read its registries; a module's hooks are called without such a name."""
HOOKS = (
    *("_global_backward_hooks", "_global_backward_pre_hooks", "_global_buffer_registration_hooks"),
    *("_global_forward_hooks", "_global_forward_pre_hooks", "_global_module_registration_hooks"),
    "_global_parameter_registration_hooks",
)
_REGISTRIES: Mapping[str, tuple[str, ...]] = {
    "torch.distributions.constraint_registry": ("biject_to._registry", "transform_to._registry"),
    "torch.distributions.kl": ("_KL_REGISTRY",),
    "torch.nn.modules.module": HOOKS,
}
"""Module → registries in which torch's modules and distributions look up third-party code."""


def read_defaults(torch: ModuleType) -> None:
    _defaults.clear()
    _defaults.update(_current_values(torch))


def _current_values(torch: ModuleType) -> Iterator[tuple[Any, Any]]:
    for name in _FLAGS:
        if (getter := getattr(torch._C, name, None)) is not None:
            yield name, getter()
    if (getter := getattr(torch._C, "_get_fp32_precision_getter", None)) is not None:
        for place in _PRECISIONS:
            yield place, getter(*place)


def flags(torch: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each flag that differs from torch's default; all flags of an unknown torch.

    A key without them would also match graphs that were compiled under other flags.
    """
    defaults = _defaults
    if not defaults and _RELEASES[0] <= release(torch.__version__) <= _RELEASES[1]:
        defaults = {**_FLAGS, **_PRECISIONS}
    for name, value in _current_values(torch):
        if name not in defaults or value != defaults[name]:
            yield name if isinstance(name, str) else "precision of " + " ".join(name), value
    getter = getattr(torch._C, "_get_fp32_precision_getter", None)
    if getter and (value := getter("mkldnn", "matmul")) not in ("none", "ieee", getter("cuda", "matmul")):
        yield "precision of mkldnn matmul", value
    if not torch.backends.mha.get_fastpath_enabled():
        yield "torch.backends.mha", "off"
    einsum = torch.backends.opt_einsum
    if einsum.enabled is not einsum.is_available() or einsum.strategy not in (None, "auto"):
        yield "torch.backends.opt_einsum", (bool(einsum.enabled), einsum.strategy)


def add_autocast(torch: ModuleType, state: Fingerprint) -> None:
    for device in torch._C._autocast_supported_devices():
        state.note("autocast", device, torch.is_autocast_enabled(device))
        state.note(torch.get_autocast_dtype(device))


def add_graph_autocast(
    torch: ModuleType, state: Fingerprint, operators: Collection[Any], details: Any
) -> None:
    """Add autocast's state if a graph runs under it or enters it without a dtype.

    torch's key lacks the dtype in torch 2.11, and until 2.15 if autocast is off around the graph.
    """
    under = torch._C._is_any_autocast_enabled() and not hasattr(details, "autocast_state")
    if under or any(operator is torch.amp.autocast_mode._enter_autocast for operator in operators):
        add_autocast(torch, state)


def settings_in(details: Any) -> str:
    return str([getattr(details, name, None) for name in _SETTINGS])


def add_ambient_state(torch: ModuleType, state: Fingerprint, known: KnownPackages, *, passes: bool) -> None:
    """Add the state that added code may read without naming it: random numbers, hooks and registries.

    Code that gets graphs (`passes`) has real tensors; other code draws numbers only outside of the trace.
    """
    names = state.reads.attributes | state.reads.functions
    if not names:
        return  # no code was added, only flags and dtypes
    draws = bool(names & _RANDOM_FUNCTIONS) or any(name.startswith(_INITIALIZERS) for name in names)
    if draws and (passes or names & _LEAVES_TRACE):
        state.note("random numbers", *_generators(torch))
    for place, registry in _registries(names):
        for key in sorted(registry, key=str):
            if not known.is_library_code(registry[key]):
                state.note(place)
                state.add((key, registry[key]), f"an entry of {place}")
    if names & {"copy", "deepcopy", "dumps"}:
        for kind, reduce in sorted(copyreg.dispatch_table.items(), key=lambda entry: entry[0].__qualname__):
            if known.is_user_module(reduce.__module__):
                state.add((kind, reduce), "its copyreg entry")
    if names & {"warn", "warn_explicit"}:
        for action, message, category, module, line in warnings.filters:
            if action == "error":
                state.note(action, *(getattr(regex, "pattern", regex) for regex in (message, module)), line)
                state.add(category)


def _generators(torch: ModuleType) -> Iterator[bytes]:
    yield torch.get_rng_state().numpy().tobytes()
    if torch.cuda.is_initialized():
        for state in torch.cuda.get_rng_state_all():
            yield state.numpy().tobytes()


def _registries(names_read: Set[str]) -> Iterator[tuple[str, Mapping[Any, Any]]]:
    """Yield the non-empty registries that code may consult by reading these names."""
    for module, names in _REGISTRIES.items():
        if module in _REGISTRY_READERS and not names_read & _REGISTRY_READERS[module]:
            continue
        for name in names:
            registry: Any = sys.modules.get(module)
            for part in name.split("."):
                registry = getattr(registry, part, None)
            if registry:
                yield f"{module}.{name}", registry
