"""A small graph that is compiled while the kernel is idle, so that the first cell finds the compiler warm."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING

from nbcache.artifacts.types import FAILED
from nbcache.core.key import components, digest
from nbcache.kernel.prewarming import Pause, Slice, Steps
from nbcache.torch_bridge.events import NotStored, restoring_only
from nbcache.torch_bridge.toolchain import compiler_identity
from nbcache.torch_bridge.unnoticed import is_as_usual, unnoticed

if TYPE_CHECKING:
    from nbcache.kernel.session import Session

__all__ = ["compile_sample", "run_sample", "sample_key", "sample_steps"]

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
        if not (serving() and is_as_usual()):
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
    return _restore(session, device, [], training=False) if is_as_usual() else None


def _restore(
    session: Session, device: str, faults: list[Exception], *, training: bool, backend: str = "inductor"
) -> float | None:
    """Compile the sample from what is stored, or not at all: after a fault nothing is tried.

    Returns the result of inference; None without one.
    """
    try:
        with restoring_only():
            return None if faults else compile_sample(session, device, training=training, backend=backend)
    except Exception as error:  # most often NotStored, within an error of torch's
        logger.info("the sample is not restored", exc_info=True)
        faults.append(error)
        return None


def _choose_instruction_set() -> None:
    """Have torch choose its vector instructions from stored answers, for later compiles."""
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
        with unnoticed(session), plainly, torch.random.fork_rng(devices):
            for cls in (Block, Sample):  # code of its own for each compile, or it would be a recompile
                cls.forward.__code__ = cls.forward.__code__.replace()
            sample = Sample()
            compiled = torch.compile(sample, fullgraph=True, dynamic=False, backend=backend)
            numbers = torch.zeros(2, 4, dtype=torch.int64, device=device)
            if training is not True:
                with torch.no_grad():
                    result = compiled(numbers).item()
            if training is not False:
                # Else autograd compiles a GPU's backward in a thread of its own: which waits for the lock
                # that is held here, and of which neither `unnoticed` nor `restoring_only` knows.
                with torch.enable_grad(), torch.autograd.set_multithreading_enabled(False):
                    compiled(numbers).backward()
    finally:
        compile_lock.release()
    return result


def _compile_elsewhere(session: Session, device: str) -> Generator[Pause, None, bool]:
    """Have another process compile the sample, once it disturbs nobody; return whether it could."""
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
