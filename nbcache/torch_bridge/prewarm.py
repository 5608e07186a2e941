"""Prepare the first compile in idle time: imports, tables, lazy initialization.

Imports run on the kernel's own thread, in slices: in a second thread they would race with the user's
(measured: `_DeadlockError` or half-made modules, 3 of 3). Reading libraries and hashing torch's sources
need no import lock, so they run in threads. The last step restores a sample, forward and backward, since
torch imports and builds much only at its first use. If the sample is not stored yet, a background process
compiles it, and also leaves torch's precompiled headers and the results of the probes.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import importlib
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nbcache.core.key import components, digest
from nbcache.core.log import logger
from nbcache.core.patches import Patches
from nbcache.core.threads import start_thread
from nbcache.kernel.prewarming import Pause, Slice, Steps
from nbcache.kernel.session import Session
from nbcache.storage.types import FAILED
from nbcache.torch_bridge import gc_pause, gpus
from nbcache.torch_bridge.environment import compiler_identity
from nbcache.torch_bridge.events import NotStored, restoring_only
from nbcache.torch_bridge.hooks import Context, Traces

_FIRST = """
    numpy tarfile pickletools urllib.request multiprocessing.connection multiprocessing.resource_sharer
    unittest.mock cProfile
"""
"""The packages that torch's import needs. Others are imported after torch.

For each tensor in a key, pickle searches all modules before torch: sympy there costs a large model 0.1 s.
"""
_COMPILER = """
    tqdm sympy networkx jinja2 fsspec
    torch.fx.experimental.symbolic_shapes torch.distributed.tensor torch.distributed.fsdp
    torch._dynamo.utils torch._inductor torch._inductor.codecache torch._functorch.aot_autograd
    torch._dynamo torch._inductor.decomposition torch._inductor.ir torch._inductor.lowering
    torch._inductor.select_algorithm torch._inductor.compile_fx
"""
_LAZY = """
    torch.distributed.tensor.experimental torch.distributed.tensor.experimental._func_map
    torch._dynamo.backends.inductor torch._inductor.async_compile torch._inductor.fx_passes.joint_graph
    torch._inductor.fx_passes.post_grad torch._inductor.codegen.cpp torch._inductor.codegen.wrapper
    torch._inductor.runtime.triton_heuristics torch._inductor.cudagraph_trees
"""
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
"""Further modules that the first compile imports, for all devices; in prewarming, the sample does."""
MODULES = (*_FIRST.split(), "torch", *_COMPILER.split(), *_LAZY.split(), *_AT_FIRST_COMPILE.split())
_LAYERS = "activation batchnorm conv container dropout linear module normalization pooling sparse"
"""Modules of `torch.nn.modules`. Dynamo reads a module's source when it first traces one of its layers."""
_HASHED = (".py", ".so", "interface.cpp", "script.ld")
"""Suffixes of the files that torch and Triton hash for their keys."""
_FOR_GPU = ("CUDA_", "HIP_", "ROCR_")
_NOTICED = (*_FOR_GPU, "TORCH", "PYTORCH", "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "ATEN_", "NPY_")
"""Prefixes of environment variables that torch and its libraries read when they are loaded."""
_READ_AT_USE = frozenset(
    {"ATEN_CPU_CAPABILITY", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "TORCHINDUCTOR_CACHE_DIR"}
)
"""Exceptions, which torch reads at each use, or which nbcache watches."""


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
    yield from _await(start_thread(_hash_sources, "hashing"))
    sample_on = ""
    while True:
        if imported_here and variables != (current := _variables()):
            _warn_of_late_variables(session, variables, current)
            variables = current
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


def prepare_forks() -> list[str]:
    """Hash and read the sources of torch and Triton before forks; return all files that affect the result."""
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    _hash_sources()
    metrics = getattr(sys.modules.get("torch._dynamo.utils"), "compilation_time_metrics", {})
    metrics.pop("inductor_codecache_torch_key", None)  # a fresh process has compiled nothing
    for name in _LAYERS.split():
        with contextlib.suppress(Exception):  # the first compile reports the error
            _read_layers(name)
    files = [getattr(sys.modules.get(name), "__file__", None) for name in ("torch", "triton")]
    return [
        str(path)
        for file in filter(None, files)
        for path in Path(file).parent.rglob("*")
        if path.name.endswith(_HASHED) and path.is_file()
    ]


def prefetch_keys(codecache: Any, context: Context, patches: Patches) -> None:
    """Begin to hash the sources of torch and Triton in torch's thread; older releases leave it to `steps`."""
    from torch._dynamo.utils import get_chromium_event_logger

    get_chromium_event_logger()  # see `events.follow_spans`
    for name in ("torch_key", "triton_key"):
        context.session.attempt("hashing sources ahead", getattr(codecache, name).prefetch)


def _absent(*names: str) -> Iterator[str]:
    return (name for words in names for name in words.split() if name not in sys.modules)


def _await(thread: threading.Thread | None) -> Iterator[Pause]:
    while thread is not None and thread.is_alive():
        yield Pause.SHORT


def _hash_sources() -> None:
    with contextlib.suppress(Exception):  # torch reports the error itself
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
    """Make Dynamo read and cache the source of a module of layers, which takes up to 0.06 s."""
    import torch
    from torch._dynamo.funcname_cache import get_funcname

    with gc_pause.pause():
        get_funcname(getattr(torch.nn.modules, name).__file__, 1)


def _load_libraries() -> None:
    """Load torch's shared libraries as its import does, but without the import lock."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        spec = find_spec("torch")
        if spec is None or not spec.origin:
            return
        folder = Path(spec.origin).parent / "lib"
        ctypes.CDLL(str(folder / "libtorch_global_deps.so"), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(folder / "libtorch_python.so"))


def _import(session: Session, name: str) -> None:
    """Import a module. Only a failure of torch is reported: a later import may raise another error."""
    try:
        with gc_pause.pause():
            importlib.import_module(name)
    except Exception as error:
        if name == "torch":
            session.notice(f"importing torch ahead failed: {error!r}", "prewarm")


def _device(session: Session, user_has_torch: Callable[[], bool]) -> str | None:
    """Return the device of the sample; None if it is unknown yet.

    On a machine with a GPU any compile creates a CUDA context, even for the CPU. That takes GPU memory, fixes
    CUDA_VISIBLE_DEVICES, and prevents the GPU's use in forked children. So wait until a cell uses CUDA. It
    suffices that a cell has imported torch if the notebook used CUDA before, or if no GPU is visible.
    """
    import torch

    if not (torch.version.hip or (torch.version.cuda and gpus.find().gpus)):
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


def _warn_of_late_variables(session: Session, old: dict[str, str], new: dict[str, str]) -> None:
    import torch

    late = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
    if not torch.cuda.is_initialized():
        late = {name for name in late if not name.startswith(_FOR_GPU)}
    if late:
        session.notice(
            f"{', '.join(sorted(late))} changed after nbcache had imported torch ahead, which reads such "
            "variables then: set them before `%load_ext nbcache`, or set NBCACHE_PREWARM=off",
            "prewarm",
        )


# --- the sample: compiled between cells, without effects that a user sees ---------------------------------

_SAMPLE_VERSION = 1
_ROOM_BYTES = 4 << 30
"""Free GPU memory that another process needs to start: a CUDA context takes half a gigabyte."""
_REST_SECONDS = 2.0
"""Seconds without a cell before a process starts, so that it does not start during `Run All`."""
_END_SECONDS = 1.0


def sample_steps(session: Session, serving: Callable[[], bool], device: str) -> Steps:
    """Restore the sample; if that fails, let another process compile it, once for each C++ compiler."""
    key, failed = sample_key(device), sample_key(device, failed_with=compiler_identity() or "none")
    for may_compile in (True, False):
        if not (serving() and _is_as_usual()):
            return
        if session.find("probe", key) and (yield from _restore_sample(session, device, key)):
            return
        if not may_compile:
            break
        if not session.settings.save or session.find(FAILED, failed):
            return
        if device == "cuda" and not _has_room():
            return
        if not (yield from _compile_elsewhere(session, device)):
            break
    session.cache.record(FAILED, failed, b"1", made=True)


def _restore_sample(session: Session, device: str, key: str) -> Generator[Slice | Pause, None, bool]:
    """Yield the steps that restore the sample; return whether they succeeded."""
    faults: list[Exception] = []
    restore = partial(_restore, session, device, faults)
    yield Slice("trace a sample", partial(restore, training=False, backend="eager"))
    for training in (False, True):
        yield Slice(f"restore a sample for {device}", partial(restore, training=training))
    if not faults:
        session.cache.record("probe", key, b"1", made=False)
        yield Slice("vector instruction sets", _choose_instruction_set)
    return not faults


def sample_key(device: str, failed_with: str | None = None) -> str:
    """Return the key of the note that the sample is stored, or that `failed_with` cannot compile it."""
    parts = {"sample": str(_SAMPLE_VERSION), "device": device}
    if failed_with is not None:
        parts["failed with"] = failed_with
    return digest(components(parts))


def run_sample(session: Session, device: str) -> float | None:
    return _restore(session, device, [], training=False) if _is_as_usual() else None


def _restore(
    session: Session, device: str, faults: list[Exception], *, training: bool, backend: str = "inductor"
) -> float | None:
    try:
        with restoring_only():
            return None if faults else compile_sample(session, device, training=training, backend=backend)
    except Exception as error:  # most often NotStored, within a torch error
        logger.info("the sample is not restored", exc_info=True)
        faults.append(error)
        return None


def _choose_instruction_set() -> None:
    """Make torch choose its vector instructions for later compiles, if the probes are stored."""
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    with contextlib.suppress(NotStored), restoring_only():
        pick_vec_isa()


def compile_sample(
    session: Session, device: str, *, training: bool | None = None, backend: str = "inductor"
) -> float | None:
    """Compile a small network of common layers, without effects on reports or torch's counters.

    `training`: True for a backward, False for inference, None for both. Returns inference's result.
    """
    import torch
    import torch._dynamo.config as dynamo_config
    from torch._dynamo.convert_frame import compile_lock

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(8, device=device, dtype=torch.float32)
            self.wide = torch.nn.Linear(8, 16, device=device, dtype=torch.float32)
            self.narrow = torch.nn.Linear(16, 8, device=device, dtype=torch.float32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            heads = self.norm(x).view(*x.shape[:2], 2, 4).transpose(1, 2)
            mixed = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)
            x = x + mixed.transpose(1, 2).reshape(x.shape)
            return x + self.narrow(torch.nn.functional.gelu(self.wide(x)))

    class Sample(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = torch.nn.Embedding(4, 8, device=device, dtype=torch.float32)
            self.blocks = torch.nn.ModuleList([Block()])

        def forward(self, numbers: torch.Tensor) -> torch.Tensor:
            x = self.tokens(numbers)
            for block in self.blocks:
                x = block(x)
            return x.softmax(-1).mean()

    if not compile_lock.acquire(blocking=False):  # a compile in a user's thread prepares torch as well
        return None
    result: float | None = None
    devices = [torch.cuda.current_device()] if device == "cuda" else []
    plainly = dynamo_config.patch(suppress_errors=False, automatic_dynamic_shapes=False)
    try:
        with _isolate(session), plainly, torch.random.fork_rng(devices):
            for cls in (Block, Sample):  # a new code object each, else it would be a recompile
                cls.forward.__code__ = cls.forward.__code__.replace()
            sample = Sample()
            compiled = torch.compile(sample, fullgraph=True, dynamic=False, backend=backend)
            numbers = torch.zeros(2, 4, dtype=torch.int64, device=device)
            if training is not True:
                with torch.no_grad():
                    result = compiled(numbers).item()
            if training is not False:
                # Else autograd compiles a GPU's backward in another thread. That thread would wait for
                # `compile_lock`, and lacks the effects of `_isolate` and `restoring_only`.
                with torch.enable_grad(), torch.autograd.set_multithreading_enabled(False):
                    compiled(numbers).backward()
    finally:
        compile_lock.release()
    return result


def _compile_elsewhere(session: Session, device: str) -> Generator[Pause, None, bool]:
    """Let another process compile the sample in idle time; return whether it succeeded."""
    while session.idle_seconds() < _REST_SECONDS:
        yield Pause.SHORT
    environ = {**os.environ, **session.settings.to_env()}
    command = [sys.executable, "-P", "-m", __package__, device]
    try:
        process = session.prewarm.start_background(command, environ)
    except OSError:
        return False
    try:
        while (status := process.exit_status()) is None:
            yield Pause.SHORT
        return status == 0
    finally:
        process.end(_END_SECONDS)


def _has_room() -> bool:
    import torch

    free, _ = torch.cuda.mem_get_info()
    return bool(free >= _ROOM_BYTES)


_LOGS = ("TORCH_COMPILE_DEBUG", "TORCH_LOGS", "TORCH_TRACE", "TORCHDYNAMO_VERBOSE")


def logs_compiles() -> bool:
    """Return whether the user has turned on torch's logs of compiles."""
    from torch._logging._internal import log_state as logs

    return bool(any(os.environ.get(name) for name in _LOGS) or logs.artifact_names or logs.log_qname_to_level)


def _is_as_usual() -> bool:
    """Return whether torch's caches are on, and modes, stances and logs are off."""
    import torch._dynamo.config
    import torch._functorch.config
    import torch._inductor.config
    from torch._dynamo import eval_frame

    return bool(
        not logs_compiles()
        and not os.environ.get("TORCH_COMPILE_DISABLE")
        and torch._inductor.config.fx_graph_cache
        and torch._functorch.config.enable_autograd_cache
        and not torch._C._len_torch_function_stack()  # such as a default device
        and not torch.is_autocast_enabled("cpu")
        and not torch.is_inference_mode_enabled()
        and not torch._inductor.config.freezing
        and not torch._dynamo.config.error_on_recompile
        and torch._dynamo.config.repro_after is None
        and eval_frame._stance.stance == "default"
    )


@contextlib.contextmanager
def _isolate(session: Session) -> Iterator[None]:
    """Keep a compile out of reports, bundles, profiles, compile ids and torch's counters."""
    import torch.compiler.config
    from torch._dynamo import convert_frame, pgo, utils
    from torch.compiler._cache import CacheArtifactManager

    mappings: list[Any] = [utils.counters, utils.cumulative_time_spent_ns, utils.compilation_time_metrics]
    mappings.append(convert_frame.FRAME_COMPILE_COUNTER)
    lists: list[Any] = [utils._compilation_metrics, utils.graph_break_reasons]
    places: list[Any] = [(utils, "curr_frame"), (convert_frame, "FRAME_COUNTER"), (pgo, "_CODE_STATE")]
    items, entries = copy.deepcopy(mappings), [[*elements] for elements in lists]
    values = [getattr(module, name) for module, name in places]
    with (
        session.unnoticed.on_this_thread(),
        _temporary_variable("TORCH_WARM_POOL", "0"),  # else torch starts its compile workers
        CacheArtifactManager.with_fresh_cache(),
        torch.compiler.config.patch(job_id=None),
    ):
        pgo._CODE_STATE = defaultdict(pgo.CodeState)  # else sizes may be dynamic
        try:
            yield
        finally:
            for mapping, original in zip(mappings, items, strict=True):
                mapping.clear()
                mapping.update(original)
            for sequence, elements in zip(lists, entries, strict=True):
                sequence.clear()
                sequence.extend(elements)
            for (module, name), value in zip(places, values, strict=True):
                setattr(module, name, value)


@contextlib.contextmanager
def _temporary_variable(name: str, value: str) -> Iterator[None]:
    original = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if original is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = original
