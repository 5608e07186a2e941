"""What is done of traces while no cell runs: one is tried on a sample, and adopted ones are audited.

For an audit, a call is kept without keeping alive what it was given: a tensor that is gone by then is
replaced by an empty one like it. A call that was given anything else that is gone is not audited.
"""

from __future__ import annotations

import contextlib
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import CellType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from nbcache.artifacts.traces import Trace
from nbcache.core.fingerprints.digests import Unknown
from nbcache.core.log import logger
from nbcache.core.model import Artifact
from nbcache.kernel.prewarming import Slice, Steps
from nbcache.torch_bridge.events import is_restoring_only, restoring_only
from nbcache.torch_bridge.traces.adopting import Adopted
from nbcache.torch_bridge.traces.checking import checked
from nbcache.torch_bridge.traces.frame import Frame
from nbcache.torch_bridge.traces.ran import Ran
from nbcache.torch_bridge.traces.reading import ReadTrace
from nbcache.torch_bridge.traces.values import Untold
from nbcache.torch_bridge.unnoticed import is_as_usual, unnoticed

if TYPE_CHECKING:
    from nbcache.kernel.session import Session

__all__ = ["Candidate", "KeptCall", "Later"]

_MOST_KEPT = 16
"""How many calls are kept for an audit."""
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A trace that is stored."""

    key: str
    digest: str
    """That of the artifact."""
    trace: Trace


@dataclass(slots=True)
class KeptCall:
    """A call of a function whose trace was adopted."""

    candidate: Candidate
    backend: Any
    one_graph: bool
    frame: Callable[[], Frame]
    """Returns the call again; Untold where it cannot be repeated."""
    in_force: Callable[[], contextlib.AbstractContextManager[None]]
    """Puts in force what was in force then: gradients, inference mode, autocast."""
    graphs: dict[str, str] = field(default_factory=dict)
    """AOTAutograd's keys of its graphs as it is traced again, by name."""

    def compile(self, frame: Frame) -> None:
        """Have Dynamo trace the call as if the function ran, and drop what comes of it."""
        import torch._dynamo.convert_frame as convert_frame
        from torch._dynamo.hooks import Hooks

        asked = SimpleNamespace(
            f_code=frame.code,
            f_globals=frame.scope,
            f_locals=frame.values,
            f_builtins=frame.scope.get("__builtins__", {}),
            closure=frame.closure,
        )
        convert_frame.ConvertFrameAssert(self.backend, self.one_graph)(asked, None, Hooks(), {})


class _Trial:
    """What becomes of a trace that is recorded and adopted to see that both work here."""

    def __init__(self) -> None:
        self.artifact: Artifact | None = None
        self.result: float | None = None
        """What the sample returned that was traced."""

    def check(self, torch: ModuleType, adopted: Adopted, frame: Frame) -> None:
        """Raise RuntimeError where the guards of an adopted trace hold for inputs of another type, too."""
        other = {
            name: value.to(torch.int32) if isinstance(value, torch.Tensor) else value
            for name, value in frame.values.items()
        }
        if adopted.output.build_guards().guard_manager.check(other):
            raise RuntimeError("the guards of an adopted trace hold for another type of numbers")


class Later:
    """The trials and audits of a kernel.

    `is_on` tells whether traces are used now; `key` returns that of a frame, or nothing. `fail(what, error)`
    hears of a trial that goes wrong, and `differs(candidate, what)` of a trace that is wrong.
    """

    def __init__(
        self,
        torch: ModuleType,
        session: Session,
        is_on: Callable[[], bool],
        key: Callable[[Frame, Any, bool], str],
        fail: Callable[[str, Exception], None],
        differs: Callable[[Candidate, str], None],
    ) -> None:
        self._torch = torch
        self._session = session
        self._is_on = is_on
        self._key = key
        self._fail = fail
        self._differs = differs
        self._here = threading.local()
        self._tried = False
        self._kept: list[KeptCall] = []
        self._drawn = random.SystemRandom().random()  # not from the user's stream
        """By this number, from 0 to 1, the kernel audits or does not."""

    @property
    def trial(self) -> _Trial | None:
        """What this thread tries a trace for, rather than for a call of the user's."""
        found: _Trial | None = getattr(self._here, "trial", None)
        return found

    def audit_now(self) -> KeptCall | None:
        """Return the call that this thread repeats for its audit; once."""
        found: KeptCall | None = getattr(self._here, "audit", None)
        self._here.audit = None
        return found

    def keep(self, candidate: Candidate, frame: Frame, backend: Any, *, one_graph: bool) -> None:
        """Have a call audited later whose trace was adopted, if this kernel audits and it can be repeated."""
        settings = self._session.settings
        drawn = settings.audit > 0 and self._drawn < 1 / settings.audit
        if settings.prewarm and drawn and len(self._kept) < _MOST_KEPT and not is_restoring_only():
            call = _kept_call(self._torch, candidate, frame, backend, one_graph=one_graph)
            self._kept += [] if call is None else [call]

    def steps(self, run_sample: Callable[[], float | None]) -> Steps:
        """Yield a trial, once, and audits of what was adopted.

        `run_sample` compiles the sample from what is stored and returns its result; None where it cannot.
        """
        if self._is_on() and not self._tried:
            self._tried = True
            trial = _Trial()
            for what in ("record a trace", "adopt a trace"):
                yield Slice(what, partial(self._try, trial, run_sample))
        while self._kept:
            call = self._kept.pop(0)
            name = call.candidate.trace.function
            yield Slice(f"audit the trace of {name}()", partial(self._audit, call))

    def _try(self, trial: _Trial, run_sample: Callable[[], float | None]) -> None:
        """Have the sample's trace recorded, or adopted: where that goes wrong, there are no traces here."""
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

    def _audit(self, call: KeptCall) -> None:
        """Trace a call again whose trace was adopted, and compare; where that is impossible, do nothing."""
        from torch._dynamo.convert_frame import compile_lock

        trace = call.candidate.trace
        name = f"{trace.function}()"
        may_trace = self._is_on() and is_as_usual() and Ran.is_possible()
        if not (may_trace and compile_lock.acquire(blocking=False)):
            return
        try:
            with call.in_force():
                frame = call.frame()
                if self._key(frame, call.backend, call.one_graph) != call.candidate.key:
                    raise Untold("what is in force around it has changed")
                checked(self._torch, ReadTrace(trace), frame)
                with unnoticed(self._session), restoring_only():
                    self._here.audit = call
                    call.compile(frame)
        except (Untold, Unknown, RecursionError) as why:
            logger.info("the trace of %s is not audited: %s", name, why)
        except Exception as error:
            logger.info("the trace of %s is not audited", name, exc_info=error)
            if any(key != trace.autograd_key for key in call.graphs.values()):
                self._differs(call.candidate, "the keys of its graph")
        finally:
            self._here.audit = None
            compile_lock.release()


def _kept_call(
    torch: ModuleType, candidate: Candidate, frame: Frame, backend: Any, *, one_graph: bool
) -> KeptCall | None:
    """Return what repeats a call once the kernel is idle; None where it cannot be kept."""
    code, scope = frame.code, frame.scope
    try:
        values = {name: _kept(torch, value) for name, value in frame.values.items()}
        cells = [_kept(torch, cell.cell_contents) for cell in frame.closure or ()]
    except (TypeError, ValueError, RecursionError):
        return None  # there is no weak reference to it, a cell is empty, or a list holds itself

    def again() -> Frame:
        held = {name: value() for name, value in values.items()}
        return Frame(code, scope, held, tuple(CellType(value()) for value in cells))

    return KeptCall(candidate, backend, one_graph, again, _in_force(torch))


def _kept(torch: ModuleType, value: Any) -> Callable[[], Any]:
    """Return what returns a value later, or one like it; TypeError where it cannot be kept."""
    kind = type(value)
    if kind in _PLAIN or kind in (torch.dtype, torch.device, torch.layout, torch.memory_format):
        return lambda: value
    if kind in (tuple, list):
        items = [_kept(torch, each) for each in value]
        return lambda: kind(each() for each in items)
    if kind is dict:
        pairs = [(_kept(torch, name), _kept(torch, each)) for name, each in value.items()]
        return lambda: {name(): each() for name, each in pairs}
    alike = _like(torch, value) if kind is torch.Tensor else _gone
    found = weakref.ref(value)

    def later() -> Any:
        held = found()
        return alike() if held is None else held

    return later


def _like(torch: ModuleType, value: Any) -> Callable[[], Any]:
    """Return what makes an empty tensor like this one."""
    if value.layout is not torch.strided or not value.is_leaf or value.is_inference():
        return _gone
    size, stride, needs_grad = tuple(value.shape), value.stride(), value.requires_grad
    made = {"dtype": value.dtype, "device": value.device}
    return lambda: torch.empty_strided(size, stride, **made).requires_grad_(needs_grad)


def _gone() -> Any:
    raise Untold("what it was called with is gone")


def _in_force(torch: ModuleType) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return what puts in force again what is in force now."""
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    cached = torch.is_autocast_cache_enabled()
    cast = {
        device: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in torch._C._autocast_supported_devices()
    }

    @contextlib.contextmanager
    def again() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode(inference))
            stack.enter_context(torch.set_grad_enabled(grad))
            for device, (enabled, dtype) in cast.items():
                if (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) != (enabled, dtype):
                    stack.enter_context(torch.autocast(device, dtype, enabled=enabled, cache_enabled=cached))
            yield

    return again
