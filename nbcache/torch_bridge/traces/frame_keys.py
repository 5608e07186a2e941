"""The key under which traces of a function are stored: its code, and all that is in force around it."""

from __future__ import annotations

import builtins
import codecs
import locale
import os
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from nbcache.core.fingerprints.code_digest import code_digest
from nbcache.core.key import sha256
from nbcache.torch_bridge.dependencies.in_force import flags
from nbcache.torch_bridge.torch_behavior import TORCHBEHAVIOR
from nbcache.torch_bridge.traces.object_digests import Frame, Untold
from nbcache.torch_bridge.unnoticed import is_read

__all__ = ["key_of", "options_of"]

_CONFIGS = (
    *("torch._dynamo.config", "torch._functorch.config", "torch._inductor.config"),
    *("torch.compiler.config", "torch.fx.experimental._config"),
)
_WITHOUT_EFFECT = frozenset(
    {
        *("cache_key_tag", "compile_threads", "cuda.cutlass_dir", "cutlass.cutlass_dir", "job_id"),
        *("worker_start_method", "xpu.cutlass_dir"),
    }
)
"""Settings that differ between folders and machines, and do not count in torch's own keys, or do there."""
_RULES = (
    *("BUILTIN_INLINE_WHEN_CALLED", "FORCE_SKIP_FILES", "LEGACY_MOD_INLINELIST", "MOD_INLINELIST"),
    *("MOD_SKIPLIST", "SKIP_DIRS"),
)
_HOOKS = (
    *("_global_backward_hooks", "_global_backward_pre_hooks", "_global_forward_hooks"),
    *("_global_forward_pre_hooks", "_global_module_registration_hooks", "_global_buffer_registration_hooks"),
    "_global_parameter_registration_hooks",
)


def key_of(torch: ModuleType, frame: Frame, backend: Any, of_packages: str, *, one_graph: bool) -> str:
    """Return the key of a frame; Untold where there is no trace of such.

    `of_packages` is the digest of what packages have put into torch; empty where there is nothing.
    """
    told = [
        code_digest(frame.code),
        f"module {frame.scope.get('__name__')}",  # of functions that it makes
        *sorted(f"{name} {_kind(value)}" for name, value in frame.values.items()),
        f"{one_graph} {_backend(torch, backend)}",
        *_in_force(torch),
        *_settings(),
        *_rules(torch),
        *([of_packages] if of_packages else []),
    ]
    return sha256("\n".join(told).encode("utf-8", "surrogatepass"))


def _kind(value: Any) -> str:
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def _backend(torch: ModuleType, backend: Any) -> str:
    inner = torch._dynamo.eval_frame.innermost_backend(backend)
    if type(inner).__name__ != "_TorchCompileInductorWrapper" or type(inner).__module__ != "torch":
        raise Untold("another backend than inductor compiles it")
    options = options_of(torch, backend)
    if options.get("triton.cudagraphs") or torch._inductor.config.triton.cudagraphs:
        raise Untold("it is compiled for CUDA graphs")
    return f"{inner.dynamic} {getattr(inner, 'name', None)} {_told(dict(sorted(options.items())))}"


def options_of(torch: ModuleType, backend: Any) -> dict[str, Any]:
    """Return inductor's settings that this function alone is compiled with."""
    options: dict[str, Any] = torch._dynamo.eval_frame.innermost_backend(backend).config
    return options


def _in_force(torch: ModuleType) -> Iterator[str]:
    """Return what is in force for any code that runs; Untold of what is no plain value."""
    of_python = (builtins.__import__, *map(codecs.lookup_error, ("strict", "surrogateescape")))
    if not all(isinstance(each, BuiltinFunctionType) for each in of_python):
        raise Untold("imports, or handlers of errors of codecs, are not Python's own")
    import torch._dynamo.variables.torch_function as modes

    set_aside = modes.torch_function_mode_stack_state_mgr.stack  # while Dynamo traces
    if set_aside or torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        raise Untold("a mode of torch's is in force")
    if (
        torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
    ):
        raise Untold("a transform of torch's is in force")
    if torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
        raise Untold("hooks for saved tensors are in force")  # of some, Dynamo puts graphs into its own
    if any(getattr(torch.nn.modules.module, name, None) for name in _HOOKS):
        raise Untold("hooks for all modules are set")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        raise Untold("it runs in a distributed program")
    overrides = TORCHBEHAVIOR.overrides_cudagraphs
    if overrides and torch._dynamo.utils._get_cudagraph_override() is not None:
        raise Untold("torch._dynamo.override_cudagraphs is in force")
    if is_read():
        raise Untold("somebody reads what torch logs while it traces")
    yield f"torch {torch.__version__} {torch.version.git_version}"
    yield f"Python {sys.version} {sys.get_int_max_str_digits()} {locale.setlocale(locale.LC_ALL)}"
    yield f"small numbers {sys.float_info.min / 2 > 0}"  # torch.set_flush_denormal is for Python, too
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
    yield from (f"{name} {value}" for name, value in _backends(torch))


def _backends(torch: ModuleType) -> Iterator[tuple[str, Any]]:
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    yield (
        "attention",
        (
            cuda.flash_sdp_enabled(),
            cuda.mem_efficient_sdp_enabled(),
            cuda.math_sdp_enabled(),
            cuda.cudnn_sdp_enabled(),
        ),
    )
    yield "cudnn", (cudnn.enabled, cudnn.benchmark, cudnn.deterministic)
    yield "mkldnn", torch.backends.mkldnn.enabled


def _settings() -> Iterator[str]:
    """Return all settings of the compiler that are not its defaults, and what of the environment it reads."""
    for module in _CONFIGS:
        config: Any = sys.modules.get(module)
        if config is None:
            continue
        for name, value in sorted(config.get_config_copy().items()):
            if name in _WITHOUT_EFFECT or name in config._compile_ignored_keys:
                continue
            yield f"{module}.{name} {_told(value)}"
    for name in sorted(os.environ):
        if name.startswith(("TORCH", "PYTORCH")) and not name.startswith(
            ("TORCHINDUCTOR_CACHE", "TORCH_LOGS")
        ):
            yield f"{name}={os.environ[name]}"


def _rules(torch: ModuleType) -> Iterator[str]:
    """Return which files and modules Dynamo walks through, and which it leaves out."""
    import torch._dynamo.trace_rules as rules

    around = os.path.dirname(os.path.dirname(os.path.abspath(str(torch.__file__)))) + os.sep
    python = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
    for name in _RULES:
        found = (str(each).replace(around, "").replace(python, "") for each in getattr(rules, name, ()))
        yield f"{name} {' '.join(sorted(found))}"


def _told(value: Any) -> str:
    """Return a setting, the same in each process."""
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(_told, value)))}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_told, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_told(key)}: {_told(item)}' for key, item in value.items())}}}"
    if isinstance(value, FunctionType):
        return f"{value.__module__}.{value.__qualname__} {code_digest(value.__code__)}"
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    text = repr(value)
    if " at 0x" in text:
        raise Untold("a setting of the compiler holds an object of yours")
    return text
