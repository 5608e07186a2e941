"""The key of a frame's traces: its code, and all settings and modes that are in force around it."""

from __future__ import annotations

import builtins
import codecs
import locale
import os
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from nbcache.core.fingerprints.code import code_digest, words
from nbcache.core.key import sha256
from nbcache.torch_bridge.dependencies.global_state import HOOKS, flags
from nbcache.torch_bridge.torch_behavior import TORCHBEHAVIOR
from nbcache.torch_bridge.traces.facts import Frame, NoTrace
from nbcache.torch_bridge.unnoticed import is_read

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


def key_of(torch: ModuleType, frame: Frame, backend: Any, of_packages: str, *, one_graph: bool) -> str:
    """Return the key of a frame; raise NoTrace if frames like it have no trace.

    `of_packages` is the digest of what packages have registered in torch; empty if they registered nothing.
    """
    kinds: dict[str, Any] = {name: type(value) for name, value in frame.values.items()}
    parts = [
        code_digest(frame.code),
        f"module {frame.scope.get('__name__')}",  # the module of functions that it creates
        *sorted(f"{name} {kind.__module__}.{kind.__qualname__}" for name, kind in kinds.items()),
        f"{one_graph} {_backend(torch, backend)}",
        *_in_force(torch),
        *_settings(),
        *_rules(torch),
        *([of_packages] if of_packages else []),
    ]
    return sha256("\n".join(parts).encode("utf-8", "surrogatepass"))


def _backend(torch: ModuleType, backend: Any) -> str:
    inner = torch._dynamo.eval_frame.innermost_backend(backend)
    if type(inner).__name__ != "_TorchCompileInductorWrapper" or type(inner).__module__ != "torch":
        raise NoTrace("its backend is not inductor")
    options = options_of(torch, backend)
    if options.get("triton.cudagraphs") or torch._inductor.config.triton.cudagraphs:
        raise NoTrace("it is compiled for CUDA graphs")
    return f"{inner.dynamic} {getattr(inner, 'name', None)} {_text_of(dict(sorted(options.items())))}"


def options_of(torch: ModuleType, backend: Any) -> dict[str, Any]:
    """Return the inductor settings of this one function."""
    options: dict[str, Any] = torch._dynamo.eval_frame.innermost_backend(backend).config
    return options


def _in_force(torch: ModuleType) -> Iterator[str]:
    """Return the state that affects any code; raise NoTrace for state that is not a plain value."""
    originals = (builtins.__import__, *map(codecs.lookup_error, ("strict", "surrogateescape")))
    if not all(isinstance(original, BuiltinFunctionType) for original in originals):
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
    if is_read():
        raise NoTrace("a log handler reads torch's messages about tracing")
    yield f"torch {torch.__version__} {torch.version.git_version}"
    yield f"Python {sys.version} {sys.get_int_max_str_digits()} {locale.setlocale(locale.LC_ALL)}"
    yield f"small numbers {sys.float_info.min / 2 > 0}"  # torch.set_flush_denormal affects Python, too
    yield f"grad {torch.is_grad_enabled()} inference {torch.is_inference_mode_enabled()}"
    yield f"dtype {torch.get_default_dtype()} device {torch.get_default_device()}"
    yield f"threads {torch.get_num_threads()} cpu {torch.backends.cpu.get_cpu_capability()}"
    yield f"cuda {torch.cuda.is_available()} {torch.cuda.is_initialized()}"
    yield f"torch functions {torch._C._is_torch_function_enabled()}"
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
    for module in _CONFIGS:
        config: Any = sys.modules.get(module)
        if config is None:
            continue
        for name, value in sorted(config.get_config_copy().items()):
            if name in _WITHOUT_EFFECT or name in config._compile_ignored_keys:
                continue
            yield f"{module}.{name} {_text_of(value)}"
    ignored = ("TORCHINDUCTOR_CACHE", "TORCH_LOGS")
    for name in sorted(os.environ):
        if name.startswith(("TORCH", "PYTORCH")) and not name.startswith(ignored):
            yield f"{name}={os.environ[name]}"


def _rules(torch: ModuleType) -> Iterator[str]:
    """Return the files and modules that Dynamo traces, and those that it skips."""
    import torch._dynamo.trace_rules as trace_rules

    packages = os.path.dirname(os.path.dirname(os.path.abspath(str(torch.__file__)))) + os.sep
    python = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
    for name in _RULES:
        rules = (str(it).replace(packages, "").replace(python, "") for it in getattr(trace_rules, name, ()))
        yield f"{name} {' '.join(sorted(rules))}"


def _text_of(value: Any) -> str:
    """Return a setting as a text that is the same in each process."""
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(_text_of, value)))}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_text_of, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_text_of(key)}: {_text_of(item)}' for key, item in value.items())}}}"
    if isinstance(value, FunctionType):
        return f"{value.__module__}.{value.__qualname__} {code_digest(value.__code__)}"
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    text = repr(value)
    if " at 0x" in text:
        raise NoTrace("a setting of the compiler has an object as its value")
    return text
