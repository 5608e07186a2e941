"""Tries traces on a sample while no cell runs, before any cell depends on them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from types import ModuleType

from nbcache.core.model import Artifact
from nbcache.kernel.prewarming import Slice, Steps
from nbcache.torch_bridge.traces.adoption import Adopted
from nbcache.torch_bridge.traces.object_digests import Frame

__all__ = ["Trials"]


class Trial:
    """A trace of the sample: recorded once, then adopted once."""

    def __init__(self) -> None:
        self.artifact: Artifact | None = None
        self.result: float | None = None
        """The result of the sample when torch traced it."""

    def check(self, torch: ModuleType, adopted: Adopted, frame: Frame) -> None:
        """Raise RuntimeError if the guards of an adopted trace also hold for inputs of another type."""
        other = {
            name: value.to(torch.int32) if isinstance(value, torch.Tensor) else value
            for name, value in frame.values.items()
        }
        if adopted.output.build_guards().guard_manager.check(other):
            raise RuntimeError("the guards of an adopted trace hold for another type of numbers")


class Trials:
    """The trial of a kernel. `fail(action, error)` turns traces off."""

    def __init__(self, is_on: Callable[[], bool], fail: Callable[[str, Exception], None]) -> None:
        self._is_on = is_on
        self._fail = fail
        self._here = threading.local()
        self._is_done = False

    @property
    def now(self) -> Trial | None:
        """The trial that this thread runs; None while it runs the user's code."""
        trial: Trial | None = getattr(self._here, "trial", None)
        return trial

    def steps(self, run_sample: Callable[[], float | None]) -> Steps:
        """Yield the trial, once for each kernel.

        `run_sample` compiles the sample from stored artifacts and returns its result; None if it cannot.
        """
        if self._is_on() and not self._is_done:
            self._is_done = True
            trial = Trial()
            for step in ("record a trace", "adopt a trace"):
                yield Slice(step, partial(self._run, trial, run_sample))

    def _run(self, trial: Trial, run_sample: Callable[[], float | None]) -> None:
        """Record or adopt the sample's trace."""
        self._here.trial = trial
        try:
            if (result := run_sample()) is None:  # it is not stored, or another thread compiles
                return
            if trial.result not in (None, result):
                raise RuntimeError(f"an adopted trace returns {result} instead of {trial.result}")
            trial.result = result
        except Exception as error:
            self._fail("trying a trace on a sample", error)
        finally:
            self._here.trial = None
