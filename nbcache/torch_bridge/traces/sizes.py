"""Keeps torch's profile of sizes as tracing does: what has varied becomes dynamic."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

from nbcache.torch_bridge.traces.object_digests import Frame
from nbcache.torch_bridge.traces.reading import ReadTrace

__all__ = ["note_sizes", "vary"]

_NUMBERS = (int, float)
_OF_VALUES = ("CONSTANT_MATCH", "EQUALS_MATCH")
"""Guards of numbers that Dynamo has looked at."""


def vary(torch: ModuleType, met: Mapping[str, Any], frame: Frame) -> bool:
    """Return whether torch would now trace the function for sizes or numbers that are dynamic.

    `met` are tensors and numbers by torch's names of them.
    """
    import torch._dynamo.pgo as pgo

    known = pgo.get_code_state().get(pgo.CodeId.make(frame.code, frame.closure))
    if known is None or not torch._dynamo.config.automatic_dynamic_shapes:
        return False
    for name, before in known.automatic_dynamic.items():
        if (entry := _entry(torch, name, met.get(name))) is None:
            continue
        both = copy.copy(before)
        both |= entry
        told = (both.size, both.stride) if isinstance(entry.size, tuple) else ((both.scalar,),)
        if any(each is pgo.auto_dynamic or pgo.auto_dynamic in each for each in told):
            return True
    return False


def note_sizes(torch: ModuleType, read: ReadTrace, values: Sequence[Any], frame: Frame) -> None:
    """Have torch know with which sizes and numbers the function was met, so that others become dynamic."""
    import torch._dynamo.pgo as pgo

    tracer: Any = SimpleNamespace(f_code=frame.code, closure=frame.closure)
    met = {*read.trace.inputs, *(index for index, kind, *_ in read.trace.guards if kind in _OF_VALUES)}
    for index in sorted(met):
        name = read.sources[index].name
        if (entry := _entry(torch, name, values[index])) is not None:
            pgo.update_automatic_dynamic(tracer, name, entry)


def _entry(torch: ModuleType, name: str, value: Any) -> Any:
    """Return what torch's profile holds of a tensor or a number, as Dynamo makes it; None of all else."""
    import torch._dynamo.pgo as pgo
    import torch._dynamo.variables.builder as builder

    if type(value) in _NUMBERS:
        return pgo.FrameStateSizeEntry.make_scalar(value)
    if type(value) is not torch.Tensor:
        return None
    # before the processes of a distributed program have met, torch returns it and puts it nowhere else
    nowhere = SimpleNamespace(all_states=None, local_state=SimpleNamespace(automatic_dynamic={}))
    return builder.record_automatic_dynamic(SimpleNamespace(distributed_state=nowhere), name, value)
