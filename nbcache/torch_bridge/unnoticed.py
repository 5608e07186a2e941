"""Compiles between cells of which the user is to notice nothing."""

from __future__ import annotations

import contextlib
import copy
import os
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbcache.kernel.session import Session

__all__ = ["is_as_usual", "is_read", "unnoticed"]

_READ = ("TORCH_COMPILE_DEBUG", "TORCH_LOGS", "TORCH_TRACE", "TORCHDYNAMO_VERBOSE")
"""Where one of these is set, somebody reads what torch writes."""


def is_read() -> bool:
    """Return whether somebody reads what torch writes while it compiles."""
    from torch._logging._internal import log_state as logs

    return bool(any(os.environ.get(name) for name in _READ) or logs.artifact_names or logs.log_qname_to_level)


def is_as_usual() -> bool:
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
def unnoticed(session: Session) -> Iterator[None]:
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
