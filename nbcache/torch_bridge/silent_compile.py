"""Compile a sample between cells, unnoticed by the user, so that the first cell finds torch warm."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any

from nbcache.core.key import components, digest
from nbcache.kernel.prewarming import Pause, Slice, Steps
from nbcache.kernel.session import Session
from nbcache.storage.types import FAILED
from nbcache.torch_bridge.environment import compiler_identity
from nbcache.torch_bridge.events import NotStored, restoring_only

logger = logging.getLogger(__name__)

_SAMPLE_VERSION = 1
_ROOM_BYTES = 4 << 30
"""Free memory of the card for another process to start: a CUDA context takes half a gigabyte."""
_REST_SECONDS = 2.0
"""Seconds without a cell before a process starts: not amid cells that run in a row."""
_END_SECONDS = 1.0


def sample_steps(session: Session, serving: Callable[[], bool], device: str) -> Steps:
    """Restore the sample; if that fails, let another process compile it, once with each compiler."""
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
    """Return the key of the note that the sample is stored, or that a compiler cannot compile it."""
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
    """Make torch choose its vector instructions for later compiles, if the answers are stored."""
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    with contextlib.suppress(NotStored), restoring_only():
        pick_vec_isa()


def compile_sample(
    session: Session, device: str, *, training: bool | None = None, backend: str = "inductor"
) -> float | None:
    """Compile a small network of common layers, without a trace in reports or torch's counts.

    `training` adds the backward; None is both. Returns the result of inference, or None.
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

    if not compile_lock.acquire(blocking=False):  # a compile in a thread of the user sets up as much
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
    """Let another process compile the sample in idle time; return whether it could."""
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


_READ = ("TORCH_COMPILE_DEBUG", "TORCH_LOGS", "TORCH_TRACE", "TORCHDYNAMO_VERBOSE")


def is_read() -> bool:
    """Return whether somebody reads torch's logs of a compile."""
    from torch._logging._internal import log_state as logs

    return bool(any(os.environ.get(name) for name in _READ) or logs.artifact_names or logs.log_qname_to_level)


def _is_as_usual() -> bool:
    """Return whether caches are on, and no mode, stance or log is."""
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
    """Leave no trace of a compile in reports, bundles, profiles, compile ids and torch's counters."""
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
        _variable("TORCH_WARM_POOL", "0"),  # torch's compile workers would be started
        CacheArtifactManager.with_fresh_cache(),
        torch.compiler.config.patch(job_id=None),
    ):
        pgo._CODE_STATE = defaultdict(pgo.CodeState)  # else sizes may be dynamic
        try:
            yield
        finally:
            for mapping, before in zip(mappings, items, strict=True):
                mapping.clear()
                mapping.update(before)
            for sequence, before in zip(lists, entries, strict=True):
                sequence.clear()
                sequence.extend(before)
            for (module, name), value in zip(places, values, strict=True):
                setattr(module, name, value)


@contextlib.contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before
