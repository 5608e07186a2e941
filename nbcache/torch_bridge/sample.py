"""A small graph that is compiled while the kernel is idle, so that the first cell finds the compiler warm."""

from __future__ import annotations

import contextlib
import copy
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING

from nbcache.artifacts.types import FAILED
from nbcache.core.key import components, digest
from nbcache.kernel.prewarming import Pause, Slice, Steps
from nbcache.torch_bridge.events import NotStored, restoring_only
from nbcache.torch_bridge.toolchain import compiler_identity

if TYPE_CHECKING:
    from nbcache.kernel.session import Session

__all__ = ["sample_steps"]


_ROOM_BYTES = 4 << 30
"""Memory of the card that must be free for another process: a context of CUDA takes half a gigabyte."""


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


def sample_steps(session: Session, serving: Callable[[], bool], device: str) -> Steps:
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
        if session.find("probe", key):
            yield from _restored_sample(session, device, key)
            return
        if not (may_compile and session.settings.save) or session.find(FAILED, failed):
            return
        if device == "cuda" and not _has_room():
            return
        if not (yield from _compile_elsewhere(session, device)):
            session.cache.record(FAILED, failed, b"1", made=True)
            return


def _restored_sample(session: Session, device: str, key: str) -> Steps:
    sample = _Restoring(session, device)
    yield Slice("trace a sample", partial(sample.run, training=False, backend="eager"))
    for training in (False, True):
        yield Slice(f"restore a sample for {device}", partial(sample.run, training=training))
    if sample.stored:
        session.cache.record("probe", key, b"1", made=False)
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


def _has_room() -> bool:
    """Tell whether another process can compile on the card without taking what the user's needs."""
    import torch

    free, _ = torch.cuda.mem_get_info()
    return bool(free >= _ROOM_BYTES)
