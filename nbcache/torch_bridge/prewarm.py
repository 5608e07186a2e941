"""Do ahead what a first compile pays for beside the compile itself: imports, tables, lazy initialization.

Imports run on the kernel's own thread, in slices: in a second thread they would race with the user's
(measured: `_DeadlockError` or half-made modules, 3 of 3). Reading libraries and hashing torch's sources
hold no import lock and run beside it. A sample is compiled last, forward and backward, because much in
torch is imported or built at its first use only. It is always a hit: where it is not stored yet, a
process of its own compiles it in the background, which also leaves torch's precompiled headers and the
answers of the instruction-set probes.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbcache.core.key import components, digest
from nbcache.core.model import FAILED
from nbcache.kernel.prewarming import Pause, Slice, Steps
from nbcache.torch_bridge import gc_pause, gpus
from nbcache.torch_bridge.events import NotStored, restoring_only
from nbcache.torch_bridge.providers.cpp_kernels import compiler_identity

if TYPE_CHECKING:
    from nbcache.kernel.session import Session

__all__ = ["compile_steps", "prefetch_keys", "steps"]

_FIRST = """
    numpy tarfile pickletools urllib.request multiprocessing.connection multiprocessing.resource_sharer
    unittest.mock cProfile
"""
"""What torch's import needs from elsewhere.

No more than that: for each tensor that a key is made of, pickle searches all modules that stand before
torch in `sys.modules`, so that sympy and networkx ahead of torch cost a 12-layer model 0.1 s.
"""
_COMPILER = """
    tqdm sympy networkx jinja2 fsspec
    torch.fx.experimental.symbolic_shapes torch.distributed.tensor torch.distributed.fsdp
    torch._dynamo.utils torch._inductor torch._inductor.codecache torch._functorch.aot_autograd
    torch._dynamo torch._inductor.decomposition torch._inductor.ir torch._inductor.lowering
    torch._inductor.select_algorithm torch._inductor.compile_fx
"""
"""Roots of what `torch.compile` imports, each a slice; those that are not there are left out."""
_LAZY = """
    torch.distributed.tensor.experimental torch.distributed.tensor.experimental._func_map
    torch._dynamo.backends.inductor torch._inductor.async_compile torch._inductor.fx_passes.joint_graph
    torch._inductor.fx_passes.post_grad torch._inductor.codegen.cpp torch._inductor.codegen.wrapper
    torch._inductor.runtime.triton_heuristics torch._inductor.cudagraph_trees
"""
"""What is imported only while something is compiled."""
_LAYERS = "activation batchnorm conv container dropout linear module normalization pooling sparse"
"""Modules of `torch.nn.modules` whose sources Dynamo reads whole when it first traces one of their layers."""
_ROOM_BYTES = 4 << 30
"""Memory of the card that must be free for another process: a context of CUDA takes half a gigabyte."""
_FOR_GPU = ("CUDA_", "HIP_", "ROCR_")
"""Beginnings of variables that count until a GPU is used."""
_NOTICED = (*_FOR_GPU, "TORCH", "PYTORCH", "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "ATEN_", "NPY_")
"""Beginnings of variables that torch, or a library of its, reads when it is loaded."""
_READ_AT_USE = frozenset(
    {"ATEN_CPU_CAPABILITY", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "TORCHINDUCTOR_CACHE_DIR"}
)
"""Such variables that count at any time, or that nbcache watches itself."""
_NO_SAMPLE = (
    "TORCH_COMPILE_DEBUG",
    "TORCH_COMPILE_DISABLE",
    "TORCH_LOGS",
    "TORCH_TRACE",
    "TORCHDYNAMO_VERBOSE",
)
"""Where one of these is set, someone reads what torch writes, or nothing is compiled."""
_SAMPLE_VERSION = 1
_REST_SECONDS = 2.0
"""How long no cell must have run before a process is started: not amid cells that are run in a row."""


def compile_steps(session: Session, device: str) -> Steps:
    """Yield what it takes to compile and store the sample for `device`, here."""
    yield from _imports(session)
    yield Slice(f"compile a sample for {device}", partial(_compile_sample, session, device))
    session.record("probe", _sample_key(device), b"1", made=True)


def steps(session: Session, serving: Callable[[], bool], user_has_torch: Callable[[], bool]) -> Steps:
    """Yield what to do ahead, in order; an unending iterator, which goes on as cells have run.

    `serving` tells whether torch's caches are ours to fill; `user_has_torch` whether a cell has imported
    torch.
    """
    imported_here = "torch" not in sys.modules
    variables = _variables()
    yield from _imports(session)
    if "torch" not in sys.modules:  # it is not installed, or broken
        return
    yield from _hash_sources()
    sample_due = True
    while True:
        if imported_here and variables != (now := _variables()):
            _warn_of_late_variables(session, variables, now)
            variables = now
        if user_has_torch():
            imported_here = False
        if sample_due and (device := _device(session, user_has_torch)) is not None:
            sample_due = False
            if device == "cuda":
                yield Slice("CUDA context", _cuda_context)
            yield from _sample(session, serving, device)
            for name in _LAYERS.split():
                yield Slice(f"read torch.nn.modules.{name}", partial(_read_layers, name))
        else:
            yield Pause.CELL


def prefetch_keys(codecache: Any, session: Session) -> None:
    """Begin to hash the sources of torch and Triton, which every key of torch holds, in a thread of torch's.

    torch 2.11 has none for that: there `steps` does it.
    """
    for name in ("torch_key", "triton_key"):
        prefetch = getattr(getattr(codecache, name, None), "prefetch", None)
        if prefetch is not None:
            session.attempt("hashing sources ahead", prefetch)


def _hash_sources() -> Steps:
    """Have the sources of torch and Triton hashed in a thread, and wait for it; a compile would not."""
    hashing = threading.Thread(target=_source_keys, name="nbcache-hashing", daemon=True)
    hashing.start()
    while hashing.is_alive():
        yield Pause.SHORT


def _source_keys() -> None:
    with contextlib.suppress(Exception):  # torch says itself what is wrong with them
        sys.modules["torch._inductor.codecache"].torch_key()
        triton = sys.modules["torch._inductor.runtime.triton_compat"]
        if triton.HAS_TRITON:
            triton.triton_key()


def _imports(session: Session) -> Iterator[Slice | Pause]:
    libraries = None
    if "torch" not in sys.modules and (folder := _torch_folder()) is not None:
        libraries = threading.Thread(
            target=_load_libraries, args=(folder,), name="nbcache-libraries", daemon=True
        )
        libraries.start()
    for name in _FIRST.split():
        yield from _import(session, name)
    while libraries is not None and libraries.is_alive():
        yield Pause.SHORT
    for name in ("torch", *_COMPILER.split(), *_LAZY.split()):
        yield from _import(session, name)
        if "torch" not in sys.modules:
            return


def _read_layers(name: str) -> None:
    """Have Dynamo read the source of these layers, which takes it up to 0.06 s each."""
    import torch
    from torch._dynamo.funcname_cache import get_funcname

    with gc_pause.paused():
        get_funcname(getattr(torch.nn.modules, name).__file__, 1)


def _torch_folder() -> Path | None:
    try:
        spec = find_spec("torch")
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent / "lib" if spec is not None and spec.origin else None


def _load_libraries(folder: Path) -> None:
    """Load torch's shared libraries as its import will, but without the lock that an import holds."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(str(folder / "libtorch_global_deps.so"), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(folder / "libtorch_python.so"))


def _import(session: Session, name: str) -> Iterator[Slice]:
    if name not in sys.modules:
        yield Slice(f"import {name}", partial(_quietly_import, session, name))


def _quietly_import(session: Session, name: str) -> None:
    """Import a module if that works; the user's own import of it tells of what does not.

    But for torch: where its import has failed once, a second one may say something else.
    """
    try:
        with gc_pause.paused():
            importlib.import_module(name)
    except Exception as error:
        if name == "torch":
            session.notice(f"importing torch ahead failed: {error!r}")


# --- the sample ---------------------------------------------------------------------------------


def _sample(session: Session, serving: Callable[[], bool], device: str) -> Steps:
    """Restore the sample; where it is not stored, have it compiled elsewhere first.

    Where it was stored and is no hit, settings differ from the usual, or parts of it were evicted: another
    compile would not help. Where it could not be compiled, it is not tried again with this compiler.
    """
    if any(os.environ.get(name) for name in _NO_SAMPLE):
        return
    key, failed = _sample_key(device), _sample_key(device, failed_with=compiler_identity() or "none")
    for may_compile in (True, False):
        if not (serving() and _as_usual()):
            return
        if session.provide("probe", key):
            yield from _restored_sample(session, device, key)
            return
        if not (may_compile and session.settings.save) or session.provide(FAILED, failed):
            return
        if device == "cuda" and not _has_room():
            return
        if not (yield from _compile_elsewhere(session, device)):
            session.record(FAILED, failed, b"1", made=True)
            return


def _restored_sample(session: Session, device: str, key: str) -> Steps:
    sample = _Restoring(session, device)
    yield Slice("trace a sample", partial(sample.run, training=False, backend="eager"))
    for training in (False, True):
        yield Slice(f"restore a sample for {device}", partial(sample.run, training=training))
    if sample.stored:
        session.record("probe", key, b"1", made=False)
        yield Slice("vector instruction sets", _choose_instruction_set)


def _sample_key(device: str, failed_with: str | None = None) -> str:
    """Return the key of what says that the sample is stored, or that a compiler cannot compile it."""
    parts = {"sample": str(_SAMPLE_VERSION), "device": device}
    if failed_with is not None:
        parts["failed with"] = failed_with
    return digest(components(parts))


def _as_usual() -> bool:
    """Tell whether the sample would be compiled as it is stored, and nobody would see it.

    Caches are on, and no mode, stance or log is.
    """
    import torch._dynamo.config
    import torch._functorch.config
    import torch._inductor.config
    from torch._dynamo import eval_frame
    from torch._logging._internal import log_state as logs

    return bool(
        torch._inductor.config.fx_graph_cache
        and torch._functorch.config.enable_autograd_cache
        and not torch._C._len_torch_function_stack()  # a default device, for one
        and not torch.is_autocast_enabled("cpu")
        and not torch.is_inference_mode_enabled()
        and not torch._inductor.config.freezing
        and not torch._dynamo.config.error_on_recompile
        and torch._dynamo.config.repro_after is None
        and eval_frame._stance.stance == "default"
        and not (logs.artifact_names or logs.log_qname_to_level)
    )


class _Restoring:
    """Compiles the sample from what is stored, or not at all."""

    def __init__(self, session: Session, device: str) -> None:
        self._session = session
        self._device = device
        self.stored = True

    def run(self, *, training: bool, backend: str = "inductor") -> None:
        """Compile the sample, unless that failed before; whatever stops it is no matter for the user."""
        if not self.stored:
            return
        try:
            with restoring_only():
                _compile_sample(self._session, self._device, training=training, backend=backend)
        except Exception:  # most often NotStored, within an error of torch's
            self.stored = False


def _choose_instruction_set() -> None:
    """Have torch choose its vector instructions from stored answers, for what is compiled anew later."""
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    with contextlib.suppress(NotStored), restoring_only():
        pick_vec_isa()


def _compile_sample(
    session: Session, device: str, *, training: bool | None = None, backend: str = "inductor"
) -> None:
    """Compile a small network of common layers; nothing of it shows in reports or in torch's own counts.

    `training` is forward and backward, or inference where False; None is both.
    """
    import torch
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

    if not compile_lock.acquire(blocking=False):  # a thread of the user's compiles: that sets up as much
        return
    devices = [torch.cuda.current_device()] if device == "cuda" else []
    try:
        with _unnoticed(session), torch.random.fork_rng(devices):
            for cls in (Block, Sample):  # code of its own for each compile, or it would be a recompile
                cls.forward.__code__ = cls.forward.__code__.replace()
            sample = Sample()
            compiled = torch.compile(sample, fullgraph=True, dynamic=False, backend=backend)
            numbers = torch.zeros(2, 4, dtype=torch.int64, device=device)
            if training is not True:
                with torch.no_grad():
                    compiled(numbers)
            if training is not False:
                # Else autograd compiles a GPU's backward in a thread of its own: which waits for the lock
                # that is held here, and of which neither `_unnoticed` nor `restoring_only` knows.
                with torch.enable_grad(), torch.autograd.set_multithreading_enabled(False):
                    compiled(numbers).backward()
    finally:
        compile_lock.release()


@contextlib.contextmanager
def _unnoticed(session: Session) -> Iterator[None]:
    """Compile without a trace in reports, bundles, profiles, compile ids and what torch counts."""
    import torch._dynamo.config
    import torch.compiler.config
    from torch._dynamo import convert_frame, pgo, utils
    from torch.compiler._cache import CacheArtifactManager

    frames, compiles = convert_frame.FRAME_COUNTER, dict(convert_frame.FRAME_COMPILE_COUNTER)
    metrics, reasons = list(utils._compilation_metrics), len(utils.graph_break_reasons)
    counts = {
        name: copy.deepcopy(getattr(utils, name))
        for name in ("counters", "cumulative_time_spent_ns", "compilation_time_metrics", "curr_frame")
    }
    profile_read = pgo._CODE_STATE is not None
    with (
        session.unnoticed(),
        _variable("TORCH_WARM_POOL", "0"),  # torch's compile workers would be started
        CacheArtifactManager.with_fresh_cache(),
        torch.compiler.config.patch(job_id=None),
        torch._dynamo.config.patch(suppress_errors=False, automatic_dynamic_shapes=False),
    ):
        try:
            yield
        finally:
            convert_frame.FRAME_COUNTER = frames
            convert_frame.FRAME_COMPILE_COUNTER.clear()
            convert_frame.FRAME_COMPILE_COUNTER.update(compiles)
            utils._compilation_metrics.clear()
            utils._compilation_metrics.extend(metrics)
            del utils.graph_break_reasons[reasons:]
            for name, before in counts.items():
                now = getattr(utils, name)
                if isinstance(now, dict):
                    now.clear()
                    now.update(before)
                else:
                    setattr(utils, name, before)
            if not profile_read:
                pgo.reset_code_state()  # it was not read for want of a job id
            elif pgo._CODE_STATE is not None:
                for code in [code for code in pgo._CODE_STATE if code.filename == __file__]:
                    del pgo._CODE_STATE[code]


@contextlib.contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable for a while."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before


def _compile_elsewhere(session: Session, device: str) -> Generator[Pause, None, bool]:
    """Have another process compile the sample, once it disturbs nobody; return whether it could."""
    while session.idle_seconds() < _REST_SECONDS:
        yield Pause.SHORT
    environ = {**os.environ, **session.settings.to_env()}
    command = [sys.executable, "-P", "-m", __package__, device]
    try:
        process = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt of the user's is not for it
        )
    except OSError:
        return False
    try:
        while process.poll() is None:
            yield Pause.SHORT
        return process.returncode == 0
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)


# --- CUDA ---------------------------------------------------------------------------------------


def _device(session: Session, user_has_torch: Callable[[], bool]) -> str | None:
    """Return what to set up the compiler for; None where nothing tells yet.

    Where there is a GPU, any compile makes a CUDA context, also one for the CPU. That takes memory there,
    the user may still choose the GPU by CUDA_VISIBLE_DEVICES, and children that are forked later cannot use
    it. So it is not made on a mere guess, and CUDA is not even asked: a cell must have begun to use it, or
    have imported torch, in a notebook that used it before or where no GPU is shown to it.
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
    return "cuda" if _sample_key("cuda") in session.named("probe", timeout=0.0) else None


def _has_room() -> bool:
    """Tell whether another process can compile on the card without taking what the user's needs."""
    import torch

    free, _ = torch.cuda.mem_get_info()
    return bool(free >= _ROOM_BYTES)


def _cuda_context() -> None:
    import torch

    with contextlib.suppress(RuntimeError):  # hidden by CUDA_VISIBLE_DEVICES, or full
        torch.zeros(1, device="cuda")


# --- environment variables ----------------------------------------------------------------------


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
