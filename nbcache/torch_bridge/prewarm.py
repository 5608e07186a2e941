"""Prepare the first compile in idle time: imports, tables, lazy initialization.

Imports run on the kernel's own thread, in slices: in a second thread they would race with the user's
(measured: `_DeadlockError` or half-made modules, 3 of 3). Reading libraries and hashing torch's sources
hold no import lock and run beside it. A sample is restored last, forward and backward, because much in
torch is imported or built at its first use only. Where it is not stored yet, a process of its own compiles it
in the background, which also leaves torch's precompiled headers and the answers of the probes.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nbcache.core.patches import Patches
from nbcache.core.threads import start_thread
from nbcache.kernel.prewarming import Pause, Slice, Steps
from nbcache.kernel.session import Session
from nbcache.torch_bridge import gc_pause, gpus
from nbcache.torch_bridge.context import Context, Traces
from nbcache.torch_bridge.silent_compile import compile_sample, run_sample, sample_key, sample_steps

_FIRST = """
    numpy tarfile pickletools urllib.request multiprocessing.connection multiprocessing.resource_sharer
    unittest.mock cProfile
"""
"""Other packages that torch's import needs: pickle searches all modules before torch for each tensor."""
_COMPILER = """
    tqdm sympy networkx jinja2 fsspec
    torch.fx.experimental.symbolic_shapes torch.distributed.tensor torch.distributed.fsdp
    torch._dynamo.utils torch._inductor torch._inductor.codecache torch._functorch.aot_autograd
    torch._dynamo torch._inductor.decomposition torch._inductor.ir torch._inductor.lowering
    torch._inductor.select_algorithm torch._inductor.compile_fx
"""
"""Roots of the imports of `torch.compile`."""
_LAZY = """
    torch.distributed.tensor.experimental torch.distributed.tensor.experimental._func_map
    torch._dynamo.backends.inductor torch._inductor.async_compile torch._inductor.fx_passes.joint_graph
    torch._inductor.fx_passes.post_grad torch._inductor.codegen.cpp torch._inductor.codegen.wrapper
    torch._inductor.runtime.triton_heuristics torch._inductor.cudagraph_trees
"""
"""Modules that a compile imports."""
_AT_FIRST_COMPILE = """
    torch._dynamo.backends.cudagraphs torch._dynamo.backends.distributed torch._dynamo.backends.onnxrt
    torch._dynamo.backends.tensorrt torch._dynamo.backends.torchxla torch._dynamo.backends.tvm
    torch._dynamo.dce_extra_outputs torch._dynamo.repro.after_dynamo torch._export.db.logging
    torch._functorch._aot_autograd.subclass_codegen torch._higher_order_ops.passes.inline_invoke_subgraph
    torch._inductor.codegen.cpp_wrapper_cpu_array_ref torch._inductor.codegen.cpp_wrapper_gpu
    torch._inductor.codegen.cpp_wrapper_mps torch._inductor.codegen.cuda_combined_scheduling
    torch._inductor.codegen.halide torch._inductor.codegen.memory_planning torch._inductor.codegen.mps
    torch._inductor.codegen.pallas torch._inductor.codegen.python_wrapper_mtia
    torch._inductor.codegen.wrapper_fxir torch._inductor.codegen.xpu.xpu_combined_scheduling
    torch._inductor.compiler_bisector torch._inductor.hooks torch._subclasses.schema_check_mode
    torch.export._trace torch.export._unlift torch.fx.experimental.validator torch.utils._cpp_embed_headers
    multiprocessing.synchronize
"""
"""Further modules that the first compile imports, for all devices; here the sample imports them."""
MODULES = (*_FIRST.split(), "torch", *_COMPILER.split(), *_LAZY.split(), *_AT_FIRST_COMPILE.split())
"""The imports of a nursery, in order."""
_LAYERS = "activation batchnorm conv container dropout linear module normalization pooling sparse"
"""Modules of `torch.nn.modules` whose sources Dynamo reads whole when it first traces one of their layers."""
_HASHED = (".py", ".so", "interface.cpp", "script.ld")
"""Ends of the names of files that torch and Triton hash for their keys."""
_FOR_GPU = ("CUDA_", "HIP_", "ROCR_")
_NOTICED = (*_FOR_GPU, "TORCH", "PYTORCH", "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "ATEN_", "NPY_")
"""Prefixes of variables that torch and its libraries read when they are loaded."""
_READ_AT_USE = frozenset(
    {"ATEN_CPU_CAPABILITY", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "TORCHINDUCTOR_CACHE_DIR"}
)
"""Such variables that have an effect at any time, or that nbcache watches."""


def compile_steps(session: Session, device: str) -> Steps:
    yield from _imports(session)
    yield Slice(f"compile a sample for {device}", partial(compile_sample, session, device))
    session.cache.record("probe", sample_key(device), b"1", made=True)


def steps(
    session: Session,
    serving: Callable[[], bool],
    user_has_torch: Callable[[], bool],
    traces: Callable[[], Traces | None],
) -> Steps:
    imported_here = "torch" not in sys.modules
    variables = _variables()
    yield from _imports(session)
    if "torch" not in sys.modules:  # it is not installed, or broken
        return
    yield from _await(start_thread(_source_keys, "hashing"))
    sample_on = ""
    while True:
        if imported_here and variables != (now := _variables()):
            _warn_of_late_variables(session, variables, now)
            variables = now
        if user_has_torch():
            imported_here = False
        if not sample_on and (device := _device(session, user_has_torch)) is not None:
            sample_on = device
            if device == "cuda":
                yield Slice("CUDA context", _cuda_context)
            yield from sample_steps(session, serving, device)
            for name in _LAYERS.split():
                yield Slice(f"read torch.nn.modules.{name}", partial(_read_layers, name))
        else:
            if sample_on and (owner := traces()) is not None:
                yield from owner.steps(partial(run_sample, session, sample_on))
            yield Pause.CELL


def before_fork() -> list[str]:
    """Hash and read torch's and Triton's sources, to be forked; return the files on which that depends."""
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    _source_keys()
    metrics = getattr(sys.modules.get("torch._dynamo.utils"), "compilation_time_metrics", {})
    metrics.pop("inductor_codecache_torch_key", None)  # a fresh process has compiled nothing
    for name in _LAYERS.split():
        with contextlib.suppress(Exception):  # the first compile tells what is wrong
            _read_layers(name)
    files = [getattr(sys.modules.get(name), "__file__", None) for name in ("torch", "triton")]
    return [
        str(path)
        for file in filter(None, files)
        for path in Path(file).parent.rglob("*")
        if path.name.endswith(_HASHED) and path.is_file()
    ]


def prefetch_keys(codecache: Any, context: Context, patches: Patches) -> None:
    """Begin to hash the sources of torch and Triton in a torch thread; without one, `steps` does it."""
    from torch._dynamo.utils import get_chromium_event_logger

    get_chromium_event_logger()  # see `events.follow_spans`
    for name in ("torch_key", "triton_key"):
        context.session.attempt("hashing sources ahead", getattr(codecache, name).prefetch)


def _absent(*names: str) -> Iterator[str]:
    return (name for words in names for name in words.split() if name not in sys.modules)


def _await(thread: threading.Thread | None) -> Iterator[Pause]:
    while thread is not None and thread.is_alive():
        yield Pause.SHORT


def _source_keys() -> None:
    with contextlib.suppress(Exception):  # torch says itself what is wrong with them
        sys.modules["torch._inductor.codecache"].torch_key()
        triton = sys.modules["torch._inductor.runtime.triton_compat"]
        if triton.HAS_TRITON:
            triton.triton_key()


def _imports(session: Session) -> Iterator[Slice | Pause]:
    libraries = None if "torch" in sys.modules else start_thread(_load_libraries, "libraries")
    for name in _absent(_FIRST):
        yield Slice(f"import {name}", partial(_import, session, name))
    yield from _await(libraries)
    for name in _absent("torch", _COMPILER, _LAZY):
        yield Slice(f"import {name}", partial(_import, session, name))
        if "torch" not in sys.modules:
            return


def _read_layers(name: str) -> None:
    """Make Dynamo read the source of these layers: up to 0.06 s each."""
    import torch
    from torch._dynamo.funcname_cache import get_funcname

    with gc_pause.paused():
        get_funcname(getattr(torch.nn.modules, name).__file__, 1)


def _load_libraries() -> None:
    """Load torch's shared libraries as its import will, but without the import lock."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        spec = find_spec("torch")
        if spec is None or not spec.origin:
            return
        folder = Path(spec.origin).parent / "lib"
        ctypes.CDLL(str(folder / "libtorch_global_deps.so"), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(folder / "libtorch_python.so"))


def _import(session: Session, name: str) -> None:
    """Import a module; the user's own import reports a failure, but may report another one for torch."""
    try:
        with gc_pause.paused():
            importlib.import_module(name)
    except Exception as error:
        if name == "torch":
            session.notice(f"importing torch ahead failed: {error!r}")


def _device(session: Session, user_has_torch: Callable[[], bool]) -> str | None:
    """Return the device of the sample; None where that is not known yet.

    Where there is a GPU, any compile makes a CUDA context, also one for the CPU. That takes memory there,
    the user may still choose the GPU by CUDA_VISIBLE_DEVICES, and children that are forked later cannot use
    it. So a cell must have begun to use CUDA, or have imported torch, in a notebook that used CUDA before or
    where no GPU is visible.
    """
    import torch

    if not (torch.version.hip or (torch.version.cuda and gpus.found().gpus)):
        return "cpu"
    if torch.cuda.is_initialized():
        return "cuda"
    if not user_has_torch():
        return None
    if not torch.version.hip and gpus.device() == "cpu":
        return "cpu"
    return "cuda" if sample_key("cuda") in session.cache.keys_of("probe", timeout=0.0) else None


def _cuda_context() -> None:
    import torch

    with contextlib.suppress(RuntimeError):  # hidden by CUDA_VISIBLE_DEVICES, or full
        torch.zeros(1, device="cuda")


def _variables() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_NOTICED) and name not in _READ_AT_USE
    }


def _warn_of_late_variables(session: Session, before: dict[str, str], now: dict[str, str]) -> None:
    import torch

    late = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    if not torch.cuda.is_initialized():
        late = {name for name in late if not name.startswith(_FOR_GPU)}
    if late:
        session.notice(
            f"{', '.join(sorted(late))} changed after nbcache had imported torch ahead, which reads such "
            "variables then: set them before `%load_ext nbcache`, or set NBCACHE_PREWARM=off"
        )
