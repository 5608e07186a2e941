"""Looks for a trace before Dynamo traces a function, and records one after it did."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.artifacts.traces import Trace, to_bytes
from nbcache.artifacts.types import DIFFERS, NO_TRACE
from nbcache.core.canonical_json import corrupt
from nbcache.core.errors import FormatError
from nbcache.core.fingerprints.digests import Unknown
from nbcache.core.log import logger
from nbcache.core.model import Artifact
from nbcache.kernel.events import FrameTraced, SpanEnded, SpanStarted, TraceAdopted, TraceAudited
from nbcache.kernel.prewarming import Steps
from nbcache.torch_bridge.environment import torch_release
from nbcache.torch_bridge.events import (
    is_restoring_only,
    last_break,
    stamp,
    with_cells,
)
from nbcache.torch_bridge.recording import count_and_record
from nbcache.torch_bridge.traces.adopting import Adopted, adopted
from nbcache.torch_bridge.traces.audit import difference
from nbcache.torch_bridge.traces.breaks import break_of, told_of_break
from nbcache.torch_bridge.traces.checking import checked
from nbcache.torch_bridge.traces.frame import Frame
from nbcache.torch_bridge.traces.later import Candidate, Later
from nbcache.torch_bridge.traces.loading import loaded
from nbcache.torch_bridge.traces.packages import holds, verdict_of
from nbcache.torch_bridge.traces.ran import Ran
from nbcache.torch_bridge.traces.reading import ReadAhead
from nbcache.torch_bridge.traces.recording import recorded
from nbcache.torch_bridge.traces.reruns import Reruns
from nbcache.torch_bridge.traces.sizes import arguments, vary
from nbcache.torch_bridge.traces.state import TESTED, is_dynamic, key_of, options_of
from nbcache.torch_bridge.traces.values import DynamicSizes, Untold
from nbcache.torch_bridge.traces.watch import Seen, watching

if TYPE_CHECKING:
    from nbcache.kernel.session import Session
    from nbcache.torch_bridge.dependencies.keys import Dependencies
    from nbcache.torch_bridge.patches import Patches

__all__ = ["Traces"]

_TYPE = "trace"
_SPAN = "nbcache.trace"
_MOST_CANDIDATES = 16
"""Of the traces under a key, how many are tried, the newest first."""
_KERNELS_PER_TRY = 20
"""One kernel of so many tries to record what could not be recorded before: that takes time."""
_NOT_TOLD = "a cell runs files, or files of your modules have changed since nbcache was loaded"
"""Why no trace may be used where they are for reruns alone."""
_COMPILE_TAKES = (
    "code globals locals builtins closure compiler_fn one_graph export export_constraints hooks cache_entry "
    "cache_entries"
)
_FRAME_TAKES = "code globals locals builtins closure compiler_fn one_graph restart_reasons"


class _Call:
    """One compile of a frame on this thread."""

    def __init__(self, hooks: Any, cache_entries: Any) -> None:
        self.hooks = hooks
        self.cache_entries = cache_entries
        self.key = ""
        """The key of the frame."""
        self.place = ""
        """What stands for it after all that has run, where traces are for reruns alone."""
        self.adopted: Adopted | None = None
        self.seen: Seen | None = None
        """What Dynamo makes values of, while it traces and that is recorded."""
        self.is_dynamic = False
        """Whether the user asked for dynamic sizes, by `dynamic=True`: the key says so."""
        self.graphs: dict[str, str] = {}
        """AOTAutograd's keys of the graphs, by the names under which their code is installed."""
        self.graph = ""
        """The name of the graph that is being compiled."""
        self.inputs: list[Any] = []
        """The sources of its inputs."""
        self.backend_seconds = 0.0
        """What was spent on compiling graphs, while it was traced."""
        self.broke: Any = None
        """The graph break that it ends in, as torch notes it."""
        self.compared: Candidate | None = None
        """A trace that fits, to be compared with what is traced."""
        self.stored: Artifact | None = None
        """What it was read from, where it is used from now on if it agrees."""


class Traces:
    """The traces of a kernel. Where anything goes wrong once, it neither records nor adopts any more."""

    def __init__(
        self, torch: ModuleType, session: Session, serving: Callable[[], bool], dependencies: Dependencies
    ) -> None:
        """`serving` tells whether stored graphs may be used now."""
        self._torch = torch
        self._session = session
        self._serving = serving
        self._dependencies = dependencies
        self._here = threading.local()
        self._tested = torch_release() in TESTED
        self._off = False
        self._reruns = Reruns(session)
        self._drawn = random.SystemRandom().random()  # not from the user's stream
        """By this number, from 0 to 1, the kernel tries again to record what had no trace."""
        self._read_ahead = ReadAhead(session)
        self._later = Later(torch, session, self._is_on, self._key, self._fail, self._differs)

    def off_because(self) -> str:
        """Return why this kernel has no traces whatever its setting is, a clause; nothing where it has."""
        if not self._tested:
            return f"not tested with torch {self._torch.__version__}"
        return "something has failed, as a notice says" if self._off else ""

    # --- hooks ----------------------------------------------------------------------------------

    def trace_frames(self, convert_frame: ModuleType, session: Session, patches: Patches) -> None:
        """Look for a trace before Dynamo traces, and record one afterwards."""
        if not self._tested:
            return

        def compile(original: Any, *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            if not self._is_on():
                return original(*args, **kwargs)
            call, before = _Call(args[9], args[11]), self._call()
            self._here.call = call
            try:
                return original(*args, **kwargs)
            except Exception as error:
                if call.adopted is None:
                    raise
                self._give_up(call, error)
                return original(*args, **kwargs)
            except BaseException:
                if call.adopted is not None:
                    call.adopted.take_back()
                raise
            finally:
                self._here.call = before

        def compile_frame(original: Any, *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            call = self._call()
            others = kwargs.get("export") or kwargs.get("package") or kwargs.get("distributed_state")
            filtered = call is not None and getattr(call.hooks, "guard_filter_fn", None) is not None
            if call is None or not self._is_on() or others or filtered or len(args) < 8:
                return original(*args, **kwargs)
            code, scope, values, _, closure, backend, one_graph, _ = args
            frame = Frame(code, scope, values, closure)
            trace = partial(original, *args, **kwargs)
            if (again := self._later.audit_now()) is not None:
                call.key, call.compared, call.graphs = again.candidate.key, again.candidate, again.graphs
                return self._trace(call, frame, trace)
            call.key = self._key(frame, backend, one_graph)
            call.is_dynamic = is_dynamic(self._torch, backend)
            if not (call.key and self._knows_what_ran(call)):
                return trace()
            if (found := self._adopt(call, frame, backend, one_graph)) is not None:
                return found
            if self._later.trial is None and (is_restoring_only() or self._has_none(call, frame)):
                return trace()
            if call.compared is None and not Ran.is_possible():
                self._refused(code, Untold("somebody profiles"))
                return trace()
            return self._trace(call, frame, trace)

        patches.hook(convert_frame, "_compile", compile, takes=_COMPILE_TAKES)
        patches.hook(convert_frame, "compile_frame", compile_frame, takes=_FRAME_TAKES)

    def trace_graphs(self, output_graph: ModuleType, session: Session, patches: Patches) -> None:
        """Note which graph of the frame is being compiled."""
        if not self._tested:
            return

        def call_user_compiler(original: Any, graph: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            call = self._call()
            if call is None or call.seen is None:
                return original(graph, module, *args, **kwargs)
            call.graph = str(module.meta.get("backend_id", ""))
            call.inputs = [each.source for each in graph.graphargs]
            began = time.perf_counter()
            try:
                return original(graph, module, *args, **kwargs)
            finally:
                call.graph = ""
                call.backend_seconds += time.perf_counter() - began

        takes = "self gm example_inputs"
        patches.hook(output_graph.OutputGraph, "_call_user_compiler", call_user_compiler, takes=takes)

    def trace_keys(self, cache: ModuleType, session: Session, patches: Patches) -> None:
        """Note AOTAutograd's key of the graph that is being compiled."""
        if not self._tested:
            return

        def autograd_cache_key(original: Any, *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            found = original(*args, **kwargs)
            call = self._call()
            if call is not None and call.graph:
                plain = self._dependencies.last_is_plain()
                call.graphs[call.graph] = found[0] if plain and call.graph not in call.graphs else ""
            return found

        patches.hook(cache, "autograd_cache_key", autograd_cache_key)

    def steps(self, run_sample: Callable[[], float | None]) -> Steps:
        """Yield what is done while no cell runs; `run_sample` is as `Later.steps` takes it."""
        yield from self._later.steps(run_sample)
        if self._is_on():
            yield from self._read_ahead.steps()

    # --- what they do ---------------------------------------------------------------------------

    def _call(self) -> _Call | None:
        found: _Call | None = getattr(self._here, "call", None)
        return found

    def _is_on(self) -> bool:
        return not self._off and self._session.settings.trace != "off" and self._serving()

    def _key(self, frame: Frame, backend: Any, one_graph: bool) -> str:
        try:
            if (of_packages := self._dependencies.of_any_graph()) is None:
                raise Untold("code of yours is part of the compiler")
            return key_of(self._torch, frame, backend, of_packages, one_graph=one_graph)
        except (Untold, Unknown, RecursionError) as why:
            self._refused(frame.code, why)
        except Exception as error:
            self._fail("finding the key of a trace", error)
        return ""

    def _knows_what_ran(self, call: _Call) -> bool:
        """Tell whether it is known what has run before a frame, where traces are for reruns alone."""
        if self._session.settings.trace != "rerun" or self._later.trial is not None:
            return True
        try:
            call.place = self._reruns.place(call.key)
        except Exception as error:
            self._fail("telling what this kernel has run", error)
            return False
        if not call.place and self._session.find(_TYPE, call.key):
            self._session.emit(FrameTraced(**stamp(), reason=_NOT_TOLD))
        return bool(call.place)

    def _stored(self, call: _Call) -> Iterator[tuple[Artifact, bool]]:
        """Yield the traces that are tried, and of each whether it may be adopted: else it is compared."""
        if (trial := self._later.trial) is not None:
            yield from () if trial.artifact is None else [(trial.artifact, True)]
            return
        stored, may_be = self._session.find(_TYPE, call.key), self._session.settings.trace != "audit"
        here = self._reruns.traces(call.key, call.place) if call.place else {each.digest for each in stored}
        nearest = sorted(stored, key=lambda each: each.digest not in here)  # then newest, as before
        yield from ((each, may_be and each.digest in here) for each in nearest[:_MOST_CANDIDATES])

    def _has_none(self, call: _Call, frame: Frame) -> bool:
        """Return whether a function is known to have no trace, or none for the sizes of this call."""
        tries_again = self._drawn < 1 / _KERNELS_PER_TRY
        verdicts = () if tries_again else self._session.find(NO_TRACE, call.key)
        try:
            return any(holds(each.content) for each in verdicts) or vary(self._torch, arguments(frame), frame)
        except Exception as error:
            self._fail("comparing sizes with earlier calls", error)
            return True

    def _adopt(self, call: _Call, frame: Frame, backend: Any, one_graph: bool) -> Any:
        """Return what stands in for Dynamo's output; None where no trace fits, or it is to be compared."""
        self._session.emit(SpanStarted(**stamp(), name=_SPAN))
        load = partial(loaded, options_of(self._torch, backend))
        key = call.key
        reasons: list[BaseException] = []
        try:
            for number, (artifact, may_be_adopted) in enumerate(self._stored(call)):
                digest = artifact.digest
                if self._session.find(DIFFERS, digest):
                    continue  # an audit has found it to be wrong
                try:
                    read = self._read_ahead.pop(digest, artifact.content)
                    if (trace := read.trace).key != key:
                        raise corrupt(f"a trace of {trace.function}() lies under the key of another function")
                    candidate = Candidate(key, digest, trace)
                    fitting = checked(self._torch, read, frame, thorough=number == 0)
                    if not may_be_adopted:
                        call.compared, call.stored = candidate, artifact
                        return None
                    call.adopted = adopted(self._torch, fitting, frame, call.hooks, call.cache_entries, load)
                except (Untold, Unknown, RecursionError) as why:
                    reasons.append(why)
                    continue
                except FormatError as error:
                    self._session.rejected(_TYPE, key, error)
                    continue
                if (trial := self._later.trial) is not None:
                    trial.check(self._torch, call.adopted, frame)
                    return call.adopted.output
                self._later.keep(candidate, frame, backend, one_graph=one_graph)
                self._session.cache.mark_restored(_TYPE, key)
                count_and_record(self._session, artifact, made=False)
                self._note_rerun(call, digest)
                facts = len(trace.facts) + len(trace.names)
                self._session.emit(
                    TraceAdopted(
                        **stamp(),
                        guards=len(trace.guards),
                        facts=facts,
                        once_seconds=trace.seconds,
                        graph_break_reason=break_of(self._session, trace, frame.code),
                    )
                )
                return call.adopted.output
        except Exception as error:
            if call.adopted is not None:
                call.adopted.take_back()
                call.adopted = None
            self._fail("adopting a trace", error)
        finally:
            self._session.emit(SpanEnded(**stamp(), name=_SPAN))
        if reasons:
            logger.debug("traced again: %s", "; ".join(map(str, reasons)))
            reason = with_cells(self._session, str(reasons[0])) or ""
            names_cause = getattr(reasons[0], "names_cause", False)
            self._session.emit(FrameTraced(**stamp(), reason=reason, names_cause=names_cause))
        return None

    def _trace(self, call: _Call, frame: Frame, trace: Callable[[], Any]) -> Any:
        """Have Dynamo trace, and record it or compare it once it has built its guards."""
        __tracebackhide__ = True
        call.seen = seen = Seen()
        here = threading.get_ident()
        utils = sys.modules["torch._dynamo.utils"]
        breaks = len(utils.graph_break_reasons)
        began = time.perf_counter()
        ran = Ran(notes=call.compared is None)  # that takes long, and was looked at when it was recorded
        with watching(seen, lambda: threading.get_ident() == here, ran):
            output = trace()
        seconds = time.perf_counter() - began - call.backend_seconds
        call.seen = None
        if seen.fault is not None:
            self._fail("watching Dynamo trace", seen.fault)
            return output
        call.broke = last_break(utils, breaks)
        build = output.build_guards

        def build_guards(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            built = build(*args, **kwargs)
            self._record(call, frame, output, seen, seconds)
            return built

        output.__dict__["build_guards"] = build_guards
        return output

    def _record(self, call: _Call, frame: Frame, output: Any, seen: Seen, seconds: float) -> None:
        """Store the trace of a frame, or that it has none. Nothing may be raised: torch calls this."""
        try:
            try:
                self._store(call, frame, output, seen, seconds)
            except (Untold, Unknown, FormatError, RecursionError) as why:
                self._refused(frame.code, why)
                depends_on_call = isinstance(why, DynamicSizes) and not call.is_dynamic
                if call.compared is None and self._later.trial is None and not depends_on_call:
                    self._session.cache.record(NO_TRACE, call.key, verdict_of(why), made=True)
        except Exception as error:
            self._fail("recording a trace", error)

    def _store(self, call: _Call, frame: Frame, output: Any, seen: Seen, seconds: float) -> None:
        """Store the trace of a frame, or compare it with the one that is stored; Untold where it has none."""
        if not all(call.graphs.values()):
            raise Untold("its graph depends on more than torch's keys hold")
        trace = recorded(self._torch, call.key, frame, output, seen, call.graphs, call.inputs)
        if call.compared is not None:
            self._compare(call, call.compared, trace)
            return
        trace = replace(trace, seconds=round(seconds, 3), **told_of_break(call.broke, frame.code))
        artifact = Artifact(_TYPE, call.key, to_bytes(trace))
        if (trial := self._later.trial) is not None:
            trial.artifact = artifact
            return
        count_and_record(self._session, artifact, made=True)
        self._note_rerun(call, artifact.digest)

    def _note_rerun(self, call: _Call, digest: str) -> None:
        if call.place:
            self._reruns.note(call.key, call.place, digest)

    def _compare(self, call: _Call, stored: Candidate, traced: Trace) -> None:
        """Say how a stored trace that fits compares with what torch traces; where it differs, give all up."""
        differs = difference(stored.trace, traced)
        self._session.emit(TraceAudited(**stamp(), differs=differs, ran_other_cells=bool(call.place)))
        name = f"{stored.trace.function}()"
        if not differs:
            self._note_rerun(call, stored.digest)
            if call.place and call.stored is not None:  # so that snapshots hold it
                count_and_record(self._session, call.stored, made=False)
            logger.info("%s was traced to audit its trace, which agrees", name)
            return
        logger.info(
            "the trace of %s differs: %s; stored: %s; traced: %s", name, differs, stored.trace, traced
        )
        self._differs(stored, differs)

    def _differs(self, stored: Candidate, what: str) -> None:
        """Remove a trace that is wrong from where it came, have it used here no more, and say so."""
        self._off = True
        session, key, digest = self._session, stored.key, stored.digest
        session.cache.give_up(_TYPE, key, f"{what} differ")
        session.cache.record(DIFFERS, digest, b"1", made=True)  # a snapshot may hold it
        if session.shared_client is not None and session.environment is not None:
            session.shared_client.withdraw(session.environment, _TYPE, key, digest)
        session.notice(
            f"the stored trace of {stored.trace.function}() is not what torch traces now: {what} differ. It "
            "was removed from the stores, what a snapshot holds of it is not used any more, and no trace is "
            "used in this kernel. Keep `trace=off`, and please report it"
        )

    # --- what goes wrong ------------------------------------------------------------------------

    def _refused(self, code: CodeType, why: BaseException) -> None:
        logger.info("%s() has no trace: %s", code.co_qualname, why)

    def _fail(self, what: str, error: Exception) -> None:
        """Neither record nor adopt any more: a fault of ours costs the time of tracing, no more."""
        self._off = True
        logger.info("%s failed", what, exc_info=error)
        self._session.notice(
            f"functions are traced as ever from now on: {what} failed, please report it: {error!r}"
        )

    def _give_up(self, call: _Call, error: Exception) -> None:
        """Take an adopted trace back with which torch could not go on."""
        adopted, call.adopted = call.adopted, None
        if adopted is not None:
            adopted.take_back()
        self._fail("going on with a trace", error)
