"""Do ahead what a first compile pays for beside the compile itself: imports, tables, lazy initialization.

Imports run on the kernel's own thread, in slices: in a second thread they would race with the user's
(measured: `_DeadlockError` or half-made modules, 3 of 3). Reading libraries and hashing torch's sources
hold no import lock and run beside it. A sample is compiled last, forward and backward, because much in
torch is imported or built at its first use only. It is always a hit: where it is not stored yet, a
process of its own compiles it in the background, which also leaves torch's precompiled headers and the
answers of the instruction-set probes.

Tested on torch 2.13.0 and 2.11.0.
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
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbcache.key import components, digest
from nbcache.prewarming import Pause, Slice, Steps
from nbcache.torch_bridge import garbage
from nbcache.torch_bridge.events import NotStored, restoring_only

if TYPE_CHECKING:
    from nbcache.kernel_session import Session

__all__ = ["compile_steps", "prefetch_key", "steps"]

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
_NOTICED = ("TORCH", "PYTORCH", "OMP_", "MKL_", "KMP_", "GOMP_", "ATEN_", "CUDA_", "TRITON_", "NCCL_")
"""Beginnings of variables that torch, or a library of its, reads when it is loaded."""
_READ_AT_USE = frozenset({"ATEN_CPU_CAPABILITY", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"})
"""Such variables that count at any time, or that nbcache watches itself."""
_NO_SAMPLE = ("TORCH_COMPILE_DEBUG", "TORCH_LOGS", "TORCH_TRACE", "TORCHDYNAMO_VERBOSE")
"""Where one of these is set, someone reads what torch writes: a sample of ours would be in there."""
_SAMPLE_VERSION = 1


def compile_steps(session: Session, device: str) -> Steps:
    """Yield what it takes to compile and store the sample for `device`, here."""
    yield from _imports()
    yield Slice(f"compile a sample for {device}", partial(_compile_sample, session, device))
    session.record("probe", _sample_key(device), b"1", made=True)


def steps(session: Session, serving: Callable[[], bool], user_has_torch: Callable[[], bool]) -> Steps:
    """Yield what to do ahead, in order; an unending iterator, which goes on as cells have run.

    `serving` tells whether torch's caches are ours to fill; `user_has_torch` whether a cell has imported
    torch.
    """
    imported_here = "torch" not in sys.modules
    yield from _imports()
    if "torch" not in sys.modules:  # it is not installed, or broken: the user's own import will tell
        return
    environ = _variables()
    yield from _sample(session, serving, "cpu")
    cuda_due = True
    while True:
        if imported_here and environ != (now := _variables()):
            _warn_of_late_variables(session, environ, now)
            environ = now
        if user_has_torch():
            imported_here = False
            if cuda_due and _uses_cuda(session):
                cuda_due = False
                yield Slice("CUDA context", _cuda_context)
                yield from _sample(session, serving, "cuda")
                continue
        yield Pause.CELL


def prefetch_key(codecache: Any, session: Session) -> None:
    """Begin to hash torch's sources, which every key of torch holds, in a thread."""
    prefetch = getattr(codecache.torch_key, "prefetch", None)
    if prefetch is not None:
        session.attempt("hashing torch's sources ahead", prefetch)


def _imports() -> Iterator[Slice | Pause]:
    libraries = None
    if "torch" not in sys.modules and (folder := _torch_folder()) is not None:
        libraries = threading.Thread(
            target=_load_libraries, args=(folder,), name="nbcache-libraries", daemon=True
        )
        libraries.start()
    for name in _FIRST.split():
        yield from _import(name)
    while libraries is not None and libraries.is_alive():
        yield Pause.SHORT
    for name in ("torch", *_COMPILER.split(), *_LAZY.split()):
        yield from _import(name)
        if "torch" not in sys.modules:
            return


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


def _import(name: str) -> Iterator[Slice]:
    if name not in sys.modules:
        yield Slice(f"import {name}", partial(_quietly_import, name))


def _quietly_import(name: str) -> None:
    with garbage.paused(), contextlib.suppress(ImportError):
        importlib.import_module(name)


# --- the sample ---------------------------------------------------------------------------------


def _sample(session: Session, serving: Callable[[], bool], device: str) -> Steps:
    if any(os.environ.get(name) for name in _NO_SAMPLE):
        return
    key, tries = _sample_key(device), 2
    while tries and serving() and _as_usual():
        tries -= 1
        if session.provide("probe", key):
            compiled = _Restoring(session, device)
            yield Slice(
                "trace a sample", partial(_compile_sample, session, device, training=False, backend="eager")
            )
            for training in (False, True):
                yield Slice(f"restore a sample for {device}", partial(compiled.run, training))
            if compiled.stored:
                session.record("probe", key, b"1", made=False)
                yield Slice("vector instruction sets", partial(_choose_instruction_set, session))
                return
        if not (tries and session.settings.save):
            return
        yield from _compile_elsewhere(session, device)


def _sample_key(device: str) -> str:
    return digest(components({"sample": str(_SAMPLE_VERSION), "device": device}))


def _as_usual() -> bool:
    """Tell whether the sample would be compiled as it is stored: caches on, and no mode in force."""
    import torch._functorch.config
    import torch._inductor.config

    return bool(
        torch._inductor.config.fx_graph_cache
        and torch._functorch.config.enable_autograd_cache
        and not torch._C._len_torch_function_stack()  # a default device, for one
        and not torch.is_autocast_enabled("cpu")
        and not torch.is_inference_mode_enabled()
    )


class _Restoring:
    """Compiles the sample from what is stored, or not at all."""

    def __init__(self, session: Session, device: str) -> None:
        self._session = session
        self._device = device
        self.stored = True

    def run(self, training: bool) -> None:
        if not self.stored:
            return
        restoring_only.on = True
        try:
            _compile_sample(self._session, self._device, training=training)
        except Exception as error:
            if not _because_of(error, NotStored):
                raise
            self.stored = False
        finally:
            restoring_only.on = False


def _because_of(error: BaseException | None, kind: type[BaseException]) -> bool:
    """Tell whether `error` or what it was raised from is of this kind: torch wraps errors in its own."""
    while error is not None:
        if isinstance(error, kind) or isinstance(getattr(error, "inner_exception", None), kind):
            return True
        error = error.__cause__ or error.__context__
    return False


def _choose_instruction_set(session: Session) -> None:
    """Have torch choose its vector instructions from stored answers, for what is compiled anew later."""
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    restoring_only.on = True
    try:
        pick_vec_isa()
    except NotStored:
        pass
    finally:
        restoring_only.on = False


def _compile_sample(
    session: Session, device: str, *, training: bool | None = None, backend: str = "inductor"
) -> None:
    """Compile a small network of common layers; nothing of it shows in reports or in torch's own counts.

    `training` is forward and backward, or inference where False; None is both.
    """
    import torch

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

    devices = [torch.cuda.current_device()] if device == "cuda" else []
    with _unnoticed(session), torch.random.fork_rng(devices):
        sample = Sample()
        compiled = torch.compile(sample, fullgraph=True, dynamic=False, backend=backend)
        numbers = torch.zeros(2, 4, dtype=torch.int64, device=device)
        if training is not True:
            with torch.no_grad():
                compiled(numbers)
        if training is not False:
            with torch.enable_grad():
                compiled(numbers).backward()


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


def _compile_elsewhere(session: Session, device: str) -> Iterator[Pause]:
    """Have another process compile the sample and store it."""
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
        return
    try:
        while process.poll() is None:
            yield Pause.SHORT
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)


# --- CUDA ---------------------------------------------------------------------------------------


def _uses_cuda(session: Session) -> bool:
    """Tell whether this notebook computes on a GPU: a cell has begun to, or one did in an earlier kernel.

    Until a cell has imported torch the user may still choose the GPU by CUDA_VISIBLE_DEVICES, and a
    context takes memory there: it is not made on a mere guess.
    """
    import torch

    if not torch.cuda.is_available():
        return False
    return torch.cuda.is_initialized() or _sample_key("cuda") in session.named("probe", timeout=0.0)


def _cuda_context() -> None:
    import torch

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
        late = {name for name in late if not name.startswith("CUDA_")}
    if late:
        session.notice(
            f"{', '.join(sorted(late))} changed after nbcache had imported torch ahead, which reads such "
            "variables then: set them before `%load_ext nbcache`, or set NBCACHE_PREWARM=off"
        )
