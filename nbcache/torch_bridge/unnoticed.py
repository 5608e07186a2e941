"""Compiles between cells that the user does not notice: a sample, so that the first cell finds torch warm."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING

from nbcache.artifacts.types import FAILED
from nbcache.core.key import components, digest
from nbcache.kernel.prewarming import Pause, Slice, Steps
from nbcache.torch_bridge.environment import compiler_identity
from nbcache.torch_bridge.events import NotStored, restoring_only

if TYPE_CHECKING:
    from nbcache.kernel.session import Session


logger = logging.getLogger(__name__)

_SAMPLE_VERSION = 1
_ROOM_BYTES = 4 << 30
"""Memory of the card that must be free for another process: a context of CUDA takes half a gigabyte."""
_REST_SECONDS = 2.0
"""Seconds without a cell before a process is started: not amid cells that are run in a row."""
_END_SECONDS = 1.0
"""Seconds that the end of a kernel waits for that process at most."""


def sample_steps(session: Session, serving: Callable[[], bool], device: str) -> Steps:
    """Restore the sample; where it is not stored, or parts of it are gone, have it compiled elsewhere first.

    Where that fails, or does not help, as under unusual settings, it is tried once with this compiler.
    """
    key, failed = sample_key(device), sample_key(device, failed_with=compiler_identity() or "none")
    for may_compile in (True, False):
        if not (serving() and _is_as_usual()):
            return
        if session.find("probe", key) and (yield from _restored_sample(session, device, key)):
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


def _restored_sample(session: Session, device: str, key: str) -> Generator[Slice | Pause, None, bool]:
    """Restore the sample, and return whether it could be."""
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
    """Return the key of what says that the sample is stored, or that a compiler cannot compile it."""
    parts = {"sample": str(_SAMPLE_VERSION), "device": device}
    if failed_with is not None:
        parts["failed with"] = failed_with
    return digest(components(parts))


def run_sample(session: Session, device: str) -> float | None:
    """Return the result of the sample in inference, compiled from what is stored; None where it is not."""
    return _restore(session, device, [], training=False) if _is_as_usual() else None


def _restore(
    session: Session, device: str, faults: list[Exception], *, training: bool, backend: str = "inductor"
) -> float | None:
    """Compile the sample from what is stored, or not at all: after a fault nothing is tried.

    Returns the result of inference; None without one.
    """
    try:
        with restoring_only():
            return None if faults else compile_sample(session, device, training=training, backend=backend)
    except Exception as error:  # most often NotStored, within a torch error
        logger.info("the sample is not restored", exc_info=True)
        faults.append(error)
        return None


def _choose_instruction_set() -> None:
    """Make torch choose its vector instructions from stored answers, for later compiles."""
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    with contextlib.suppress(NotStored), restoring_only():
        pick_vec_isa()


def compile_sample(
    session: Session, device: str, *, training: bool | None = None, backend: str = "inductor"
) -> float | None:
    """Compile a small network of common layers; nothing of it shows in reports or in torch's own counts.

    `training` is forward and backward, or inference where False; None is both. Returns the result of
    inference; None where that was not asked for, or another thread compiles.
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

    if not compile_lock.acquire(blocking=False):  # a thread of the user's compiles: that sets up as much
        return None
    result: float | None = None
    devices = [torch.cuda.current_device()] if device == "cuda" else []
    plainly = dynamo_config.patch(suppress_errors=False, automatic_dynamic_shapes=False)
    try:
        with _unnoticed(session), plainly, torch.random.fork_rng(devices):
            for cls in (Block, Sample):  # new code for each compile, or it would be a recompile
                cls.forward.__code__ = cls.forward.__code__.replace()
            sample = Sample()
            compiled = torch.compile(sample, fullgraph=True, dynamic=False, backend=backend)
            numbers = torch.zeros(2, 4, dtype=torch.int64, device=device)
            if training is not True:
                with torch.no_grad():
                    result = compiled(numbers).item()
            if training is not False:
                # Else autograd compiles a GPU's backward in another thread, which waits for the lock
                # that is held here, and of which neither `unnoticed` nor `restoring_only` knows.
                with torch.enable_grad(), torch.autograd.set_multithreading_enabled(False):
                    compiled(numbers).backward()
    finally:
        compile_lock.release()
    return result


def _compile_elsewhere(session: Session, device: str) -> Generator[Pause, None, bool]:
    """Let another process compile the sample, once it disturbs nobody; return whether it could."""
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
    """Return whether another process can compile on the card without taking what the user's needs."""
    import torch

    free, _ = torch.cuda.mem_get_info()
    return bool(free >= _ROOM_BYTES)


# --- nothing of it shows -----------------------------------------------------------------------------

_READ = ("TORCH_COMPILE_DEBUG", "TORCH_LOGS", "TORCH_TRACE", "TORCHDYNAMO_VERBOSE")
"""Variables with which somebody reads what torch writes."""


def is_read() -> bool:
    """Return whether somebody reads what torch writes while it compiles."""
    from torch._logging._internal import log_state as logs

    return bool(any(os.environ.get(name) for name in _READ) or logs.artifact_names or logs.log_qname_to_level)


def _is_as_usual() -> bool:
    """Return whether a compile would find what is stored, and nobody would see it.

    Caches are on, and no mode, stance or log is.
    """
    import torch._dynamo.config
    import torch._functorch.config
    import torch._inductor.config
    from torch._dynamo import eval_frame

    return bool(
        not is_read()
        and not os.environ.get("TORCH_COMPILE_DISABLE")
        and torch._inductor.config.fx_graph_cache
        and torch._functorch.config.enable_autograd_cache
        and not torch._C._len_torch_function_stack()  # a default device, for one
        and not torch.is_autocast_enabled("cpu")
        and not torch.is_inference_mode_enabled()
        and not torch._inductor.config.freezing
        and not torch._dynamo.config.error_on_recompile
        and torch._dynamo.config.repro_after is None
        and eval_frame._stance.stance == "default"
    )


@contextlib.contextmanager
def _unnoticed(session: Session) -> Iterator[None]:
    """Compile without a trace in reports, bundles, profiles, compile ids and what torch counts."""
    import torch.compiler.config
    from torch._dynamo import convert_frame, pgo, utils
    from torch.compiler._cache import CacheArtifactManager

    frames, compiles = convert_frame.FRAME_COUNTER, dict(convert_frame.FRAME_COMPILE_COUNTER)
    metrics, reasons = list(utils._compilation_metrics), len(utils.graph_break_reasons)
    counts = {
        name: copy.deepcopy(getattr(utils, name))
        for name in ("counters", "cumulative_time_spent_ns", "compilation_time_metrics", "curr_frame")
    }
    met = pgo._CODE_STATE
    with (
        session.unnoticed.on_this_thread(),
        _variable("TORCH_WARM_POOL", "0"),  # torch's compile workers would be started
        CacheArtifactManager.with_fresh_cache(),
        torch.compiler.config.patch(job_id=None),
    ):
        pgo._CODE_STATE = defaultdict(pgo.CodeState)  # by what was met before, sizes would be dynamic
        try:
            yield
        finally:
            pgo._CODE_STATE = met
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
