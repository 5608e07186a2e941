"""Looks for a trace before Dynamo traces a function, and records one after it did."""

from __future__ import annotations

import json
import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from itertools import islice
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.artifacts.traces import REST, Trace, from_bytes, to_bytes
from nbcache.artifacts.types import DIFFERS, NO_TRACE, RERUN
from nbcache.core.canonical_json import corrupt
from nbcache.core.errors import FormatError
from nbcache.core.fingerprints.digests import Unknown
from nbcache.core.key import sha256
from nbcache.core.log import logger
from nbcache.core.model import Artifact
from nbcache.kernel.events import FrameTraced, SpanEnded, SpanStarted, TraceAdopted, TraceAudited
from nbcache.kernel.prewarming import Slice, Steps
from nbcache.torch_bridge.events import (
    break_text,
    is_restoring_only,
    last_break,
    stamp,
    with_cells,
    words_of_break,
)
from nbcache.torch_bridge.patches import Patches
from nbcache.torch_bridge.recording import count_and_record
from nbcache.torch_bridge.torch_behavior import TORCHBEHAVIOR
from nbcache.torch_bridge.traces.adoption import Adopted, adopted, loaded
from nbcache.torch_bridge.traces.executed_code import Executed
from nbcache.torch_bridge.traces.fact_checks import checked
from nbcache.torch_bridge.traces.frame_keys import key_of, options_of
from nbcache.torch_bridge.traces.object_digests import Frame, Untold
from nbcache.torch_bridge.traces.observations import Seen, watching
from nbcache.torch_bridge.traces.recording import recorded
from nbcache.torch_bridge.traces.trace_rows import ReadTrace, read

if TYPE_CHECKING:
    from nbcache.kernel.session import Session
    from nbcache.torch_bridge.context import Context
    from nbcache.torch_bridge.dependencies.keys import Dependencies

__all__ = ["Reruns", "Traces"]

_TYPE = "trace"
_SPAN = "nbcache.trace"
_MOST_CANDIDATES = 16
"""How many traces under a key are tried, the newest first."""
_UNKNOWN_PROGRAM = "a cell runs files, or files of your modules have changed since nbcache was loaded"
_OTHER_PROGRAM = "this kernel has run other cells"
_MOST_BYTES = 16 << 20
"""Of content that is read ahead: the traces of some hundred models."""
_MOST_RERUNS = 64
"""Number of places per function, the newest first."""
_RERUN = re.compile(r"[0-9a-f]{64} [0-9a-f]{64}")
"""A place, and the digest of a trace that torch made there."""
_PLACES = frozenset({"co_filename", "co_firstlineno", "co_linetable"})
"""Fields of code that say where it stands."""
_RESUME_LINE = re.compile(r"(?<=torch_dynamo_resume_in_)(\w+?)_at_\d+")
"""Line number in the name of a function that goes on after a graph break."""


class _Call:
    """One compile of a frame on this thread."""

    def __init__(self, hooks: Any, cache_entries: Any) -> None:
        self.hooks = hooks
        self.cache_entries = cache_entries
        self.key = ""
        """The key of the frame."""
        self.place = ""
        """Identifies the frame by its key and everything that has run before it."""
        self.adopted: Adopted | None = None
        self.seen: Seen | None = None
        """Dynamo's values, while it traces and nbcache records."""
        self.graphs: dict[str, str] = {}
        """AOTAutograd's keys of the graphs, by the names under which Dynamo installs their code."""
        self.graph = ""
        """The name of the graph that is being compiled."""
        self.inputs: list[Any] = []
        """The sources of its inputs."""
        self.backend_seconds = 0.0
        """Time that torch spent on compiling graphs while it traced."""
        self.broke: Any = None
        """The graph break that it ends in, as torch notes it."""
        self.audited: tuple[str, Trace] | None = None
        """A stored trace that fits, with its artifact's digest, if this kernel audits it."""


class Traces:
    """The traces of a kernel. After one fault, the kernel neither records nor adopts."""

    def __init__(
        self, torch: ModuleType, session: Session, serving: Callable[[], bool], dependencies: Dependencies
    ) -> None:
        """`serving` returns whether stored graphs may be used now."""
        self._torch = torch
        self._session = session
        self._serving = serving
        self._dependencies = dependencies
        self._here = threading.local()
        self._watched = self._guarded = Patches()
        self._off = False
        self._reruns = Reruns(session)
        self._drawn = random.SystemRandom().random()  # not from the user's stream
        self._has_audited = False
        self._read_ahead = ReadAhead(session)
        self._trials = Trials(self._is_on, self._fail)

    def off_because(self) -> str:
        """Return why this kernel has no traces whatever its setting is, a clause; nothing where it has."""
        if not TORCHBEHAVIOR.has_traces:
            return f"not tested with torch {self._torch.__version__}"
        return "something has failed, as a notice says" if self._off else ""

    # --- hooks ----------------------------------------------------------------------------------

    def trace_frames(self, convert_frame: ModuleType, context: Context, patches: Patches) -> None:
        """Look for a trace before Dynamo traces, and record one afterwards."""

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
            call.key = self._key(frame, backend, one_graph)
            if not (call.key and self._find_place(call)):
                return trace()
            if (output := self._adopt(call, frame, backend)) is not None:
                return output
            if self._trials.now is None and (is_restoring_only() or self._has_none(call)):
                return trace()
            if call.audited is None and not Executed.is_possible():
                self._refused(code, Untold("a profiler runs"))
                return trace()
            return self._trace(call, frame, trace)

        patches.hook(convert_frame, "_compile", compile)
        patches.hook(convert_frame, "compile_frame", compile_frame)

    def trace_graphs(self, output_graph: ModuleType, context: Context, patches: Patches) -> None:
        """Note which graph of the frame is being compiled."""

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

        patches.hook(output_graph.OutputGraph, "_call_user_compiler", call_user_compiler)

    def trace_keys(self, cache: ModuleType, context: Context, patches: Patches) -> None:
        """Note AOTAutograd's key of the graph that is being compiled."""

        def autograd_cache_key(original: Any, *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            found = original(*args, **kwargs)
            call = self._call()
            if call is not None and call.graph:
                plain = self._dependencies.last_is_plain()
                call.graphs[call.graph] = found[0] if plain and call.graph not in call.graphs else ""
            return found

        patches.hook(cache, "autograd_cache_key", autograd_cache_key)

    def watch_tracing(self, convert_frame: ModuleType, context: Context, patches: Patches) -> None:
        """Keep what may be replaced while Dynamo traces and that is recorded: see `observations.watching`."""
        self._watched = patches

    def build_guards(self, guards: ModuleType, context: Context, patches: Patches) -> None:
        """Keep what is replaced while a trace is adopted: see `adoption.adopted`."""
        self._guarded = patches

    def steps(self, run_sample: Callable[[], float | None]) -> Steps:
        """Yield the work for idle times; `run_sample` is as `Trials.steps` takes it."""
        yield from self._trials.steps(run_sample)
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

    def _find_place(self, call: _Call) -> bool:
        """Return whether nbcache knows all that has run before a frame."""
        if self._trials.now is not None:
            return True
        try:
            call.place = self._reruns.place(call.key)
        except Exception as error:
            self._fail("telling what this kernel has run", error)
            return False
        if not call.place and self._session.find(_TYPE, call.key):
            self._session.emit(FrameTraced(**stamp(), reason=_UNKNOWN_PROGRAM))
        return bool(call.place)

    def _stored(self, call: _Call) -> Iterator[tuple[Artifact, bool]]:
        """Yield the traces to try, each with whether torch made it after the same program.

        One of another program is the last: its facts say what has changed.
        """
        if (trial := self._trials.now) is not None:
            yield from () if trial.artifact is None else [(trial.artifact, True)]
            return
        stored, here = self._session.find(_TYPE, call.key), self._reruns.traces(call.key, call.place)
        fitting = [artifact for artifact in stored if artifact.digest in here]
        others = [artifact for artifact in stored if artifact.digest not in here]
        yield from ((artifact, True) for artifact in fitting[:_MOST_CANDIDATES])
        yield from ((artifact, False) for artifact in others[:1])

    def _has_none(self, call: _Call) -> bool:
        """Return whether a function had no trace after the same program."""
        return not self._is_drawn() and bool(self._session.find(NO_TRACE, call.place))

    def _is_drawn(self) -> bool:
        """Return whether chance has chosen this kernel to do what takes time, one in `audit` kernels.

        Such a kernel audits one trace, and records functions again that had none.
        """
        audit = self._session.settings.audit
        return audit > 0 and self._drawn < 1 / audit

    def _audits(self) -> bool:
        """Return whether to compare the next trace that fits, rather than adopt it."""
        is_first, self._has_audited = not self._has_audited, True
        return self._session.settings.trace == "audit" or (self._is_drawn() and is_first)

    def _adopt(self, call: _Call, frame: Frame, backend: Any) -> Any:
        """Return a stand-in for Dynamo's output; None if no trace fits, or one that fits is audited."""
        self._session.emit(SpanStarted(**stamp(), name=_SPAN))
        load = partial(loaded, options_of(self._torch, backend))
        key = call.key
        reasons: list[BaseException] = []
        try:
            for number, (artifact, is_rerun) in enumerate(self._stored(call)):
                digest = artifact.digest
                if self._session.find(DIFFERS, digest):
                    continue  # an audit has found it to be wrong
                try:
                    read = self._read_ahead.pop(digest, artifact.content)
                    if (trace := read.trace).key != key:
                        raise corrupt(f"a trace of {trace.function}() lies under the key of another function")
                    fitting = checked(self._torch, read, frame, thorough=number == 0)
                    if not is_rerun:
                        raise Untold(_OTHER_PROGRAM)
                    if (trial := self._trials.now) is None and self._audits():
                        call.audited = digest, trace
                        return None
                    call.adopted = adopted(
                        self._torch, fitting, frame, call.hooks, call.cache_entries, load, self._guarded
                    )
                except (Untold, Unknown, RecursionError) as why:
                    reasons.append(why)
                    continue
                except FormatError as error:
                    self._session.rejected(_TYPE, key, error)
                    continue
                if trial is not None:
                    trial.check(self._torch, call.adopted, frame)
                    return call.adopted.output
                self._session.cache.mark_restored(_TYPE, key)
                count_and_record(self._session, artifact, made=False)
                self._reruns.note(key, call.place, digest)
                facts = len(trace.facts) + len(trace.names)
                self._session.emit(
                    TraceAdopted(
                        **stamp(),
                        guards=len(trace.guards),
                        facts=facts,
                        once_seconds=trace.seconds,
                        graph_break_reason=_break_of(self._session, trace, frame.code),
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
        """Let Dynamo trace, and record or audit the trace once torch has built its guards."""
        __tracebackhide__ = True
        call.seen = seen = Seen()
        here = threading.get_ident()
        utils = sys.modules["torch._dynamo.utils"]
        breaks = len(utils.graph_break_reasons)
        began = time.perf_counter()
        executed = Executed(notes=call.audited is None)  # this is slow, and an audit needs none
        with watching(seen, lambda: threading.get_ident() == here, executed, self._watched):
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
        """Store the trace of a frame, or that it has none. This raises nothing: torch calls it."""
        try:
            try:
                self._store(call, frame, output, seen, seconds)
            except (Untold, Unknown, FormatError, RecursionError) as why:
                self._refused(frame.code, why)
                if call.audited is None and self._trials.now is None:
                    self._session.cache.record(NO_TRACE, call.place, str(why).encode(), made=True)
        except Exception as error:
            self._fail("recording a trace", error)

    def _store(self, call: _Call, frame: Frame, output: Any, seen: Seen, seconds: float) -> None:
        """Store the trace of a frame, or compare it with a stored one; Untold if it has none."""
        if not all(call.graphs.values()):
            raise Untold("its graph depends on more than torch's keys hold")
        trace = recorded(self._torch, call.key, frame, output, seen, call.graphs, call.inputs)
        if call.audited is not None:
            self._compare(call, *call.audited, trace)
            return
        trace = replace(trace, seconds=round(seconds, 3), **_fields_of_break(call.broke, frame.code))
        artifact = Artifact(_TYPE, call.key, to_bytes(trace))
        if (trial := self._trials.now) is not None:
            trial.artifact = artifact
            return
        known = self._session.find(_TYPE, call.key)[:1]  # as a rule, an edit elsewhere changes no trace
        is_new = not (known and is_alike(from_bytes(known[0].content), trace))
        artifact = artifact if is_new else known[0]
        count_and_record(self._session, artifact, made=is_new)
        self._reruns.note(call.key, call.place, artifact.digest)

    def _compare(self, call: _Call, digest: str, stored: Trace, traced: Trace) -> None:
        """Report whether a stored trace equals torch's; if not, give all traces up."""
        differs = difference(stored, traced)
        self._session.emit(TraceAudited(**stamp(), differs=differs))
        name = f"{stored.function}()"
        if not differs:
            self._reruns.note(call.key, call.place, digest)
            logger.info("%s was traced to audit its trace, which agrees", name)
            return
        logger.info("the trace of %s differs: %s; stored: %s; traced: %s", name, differs, stored, traced)
        self._differs(stored, digest, differs)

    def _differs(self, stored: Trace, digest: str, parts: str) -> None:
        """Remove a wrong trace from the stores, use no trace in this kernel, and notify the user."""
        self._off = True
        session, key = self._session, stored.key
        session.cache.give_up(_TYPE, key, f"{parts} differ")
        session.cache.record(DIFFERS, digest, b"1", made=True)  # a snapshot may hold it
        if session.shared_client is not None and session.environment is not None:
            session.shared_client.withdraw(session.environment, _TYPE, key, digest)
        session.notice(
            f"the stored trace of {stored.function}() is not what torch traces now: {parts} differ. It "
            "was removed from the stores, what a snapshot holds of it is not used any more, and no trace is "
            "used in this kernel. Keep `trace=off`, and please report it"
        )

    # --- what goes wrong ------------------------------------------------------------------------

    def _refused(self, code: CodeType, why: BaseException) -> None:
        logger.info("%s() has no trace: %s", code.co_qualname, why)

    def _fail(self, what: str, error: Exception) -> None:
        """Stop recording and adopting: our own fault costs only the time of tracing."""
        self._off = True
        logger.info("%s failed", what, exc_info=error)
        self._session.notice(
            f"functions are traced as ever from now on: {what} failed, please report it: {error!r}"
        )

    def _give_up(self, call: _Call, error: Exception) -> None:
        """Undo the adoption of a trace that torch could not go on with."""
        adopted, call.adopted = call.adopted, None
        if adopted is not None:
            adopted.take_back()
        self._fail("going on with a trace", error)


def _break_of(session: Session, trace: Trace, code: CodeType) -> str | None:
    """Return why an adopted function ends in a graph break, and where."""
    if not trace.break_reason or not trace.break_line:
        return trace.break_reason or None
    line = code.co_firstlineno + trace.break_line - 1
    return break_text(session, trace.break_reason, code.co_filename, line)


def _fields_of_break(reason: Any, code: CodeType) -> dict[str, Any]:
    """Return what a trace holds of the graph break that this code ends in."""
    if reason is None:
        return {}
    told: dict[str, Any] = {"break_reason": words_of_break(reason.reason)}
    stack = getattr(reason, "user_stack", None)
    own = {line for *_, line in code.co_lines()}
    if stack and stack[-1].filename == code.co_filename and stack[-1].lineno in own:
        told["break_line"] = max(0, stack[-1].lineno - code.co_firstlineno + 1)
    return told


class Reruns:
    """The places of this kernel's frames, and the traces that this and earlier kernels made there."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._met: Counter[str] = Counter()
        """Key of a frame → how often the kernel has met it."""
        self._noted: dict[str, dict[str, None]] = {}
        """Key of a frame → its lines, the newest first."""

    def place(self, key: str) -> str:
        """Return the digest of a frame and of all that has run before it; empty if that is unknown.

        It includes how often the kernel has met the frame, and ignores modules that torch has generated.
        """
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        with self._lock:
            ran = self._session.program.digest(generated=cache_dir())
            self._met[key] += 1
            return ran and sha256(f"{key} {ran} {self._met[key]}".encode())

    def traces(self, key: str, place: str) -> Set[str]:
        """Return the digests of the traces that torch made of the frame with this key at this place."""
        stored = self._session.find(RERUN, key)
        with self._lock:
            noted = self._noted.setdefault(key, {})
            for artifact in stored:
                noted.update(dict.fromkeys(_RERUN.findall(artifact.content.decode("ascii", "replace"))))
            return {line.split()[1] for line in noted if line.startswith(place)}

    def note(self, key: str, place: str, trace: str) -> None:
        """Note the digest of a trace that torch made of the frame at this place, or that it adopted there."""
        line = f"{place} {trace}"
        with self._lock:
            noted = self._noted.setdefault(key, {})
            if is_new := line not in noted:
                self._noted[key] = noted = dict.fromkeys(islice((line, *noted), _MOST_RERUNS))
            content = "\n".join(noted).encode("ascii")
        self._session.cache.record(RERUN, key, content, made=is_new)


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


def difference(stored: Trace, now: Trace) -> str:
    """Return what differs between two traces of a function, as a plural; nothing where they do the same.

    Names that Dynamo makes up for globals, places in files, and the order of guards do not count, nor do
    facts: those of `stored` hold.
    """
    for (what, one), (_, other) in zip(_told(stored), _told(now), strict=True):
        if one != other:
            return what
    return ""


def is_alike(stored: Trace, now: Trace) -> bool:
    """Return whether two traces of a function do the same on the same facts."""
    facts = [(trace.facts, trace.names, trace.asked, trace.attributes) for trace in (stored, now)]
    return facts[0] == facts[1] and not difference(stored, now)


def _told(trace: Trace) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a trace, each with what it is called, so that they can be compared."""
    names = {name: f"<{number}>" for number, (name, _, _) in enumerate(trace.installed)}
    sources: list[str] = []
    for kind, base, fields in trace.sources:
        row = [kind, None if base is None else sources[base], _without(fields, names, sources)]
        sources.append(sha256(_text(row).encode("utf-8", "surrogatepass")))
    yield "its instructions", _text(_without(trace.code, names))
    yield (
        "the globals that its code reads",
        [[kind, _place(kind, place)] for _, kind, place in trace.installed],
    )
    yield "the modules that its code reads", trace.imports
    yield "the keys of its graph", trace.autograd_key
    yield "the inputs of its graph", [sources[index] for index in trace.inputs]
    yield (
        "its guards",
        sorted(
            _text([sources[index], kind, _without(more, names, sources)])
            for index, kind, *more in trace.guards
        ),
    )
    yield "the sizes that it guards", sorted(_text([sources[index], *row]) for index, *row in trace.shapes)
    yield "the keys that it guards in order", sorted(sources[index] for index in trace.key_order)
    yield "its side effects", trace.replayed
    yield "torch's global settings", trace.state
    yield "its outputs", trace.has_outputs


def _without(value: Any, names: Mapping[str, str], sources: Sequence[str] = ()) -> Any:
    """Return JSON without places in files, with other names, and with sources in place of their indices."""
    if isinstance(value, Mapping):
        return {name: _without(each, names, sources) for name, each in value.items() if name not in _PLACES}
    if isinstance(value, list):
        if len(value) == 2 and value[0] == "source" and type(value[1]) is int:
            return ["source", sources[value[1]]]
        return [_without(each, names, sources) for each in value]
    return names.get(value, value) if isinstance(value, str) else value


def _place(kind: str, place: str) -> Any:
    """Return what a global is: of code that goes on after a graph break, without where it stands."""
    return _without(json.loads(_RESUME_LINE.sub(r"\1", place)), {}) if kind in REST else place


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


class ReadAhead:
    """The traces of this notebook, read before anything asks for them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._read: dict[str, ReadTrace] = {}
        """By the digest of the content."""
        self._met: set[str] = set()
        self._bytes = 0

    def steps(self) -> Steps:
        """Yield what reads the traces that the session has at hand by now."""
        for artifact in self._session.cache.at_hand("trace"):
            more = self._bytes + len(artifact.content)
            if artifact.digest not in self._met and more <= _MOST_BYTES:
                self._met.add(artifact.digest)
                self._bytes = more
                yield Slice("read a trace", partial(self._keep, artifact.digest, artifact.content))

    def pop(self, digest: str, content: bytes) -> ReadTrace:
        """Return the trace with this digest, as `read` does."""
        return self._read.pop(digest, None) or read(content)

    def _keep(self, digest: str, content: bytes) -> None:
        try:
            self._read[digest] = read(content)
        except (FormatError, Untold) as error:  # whoever asks for it says so
            logger.debug("a trace cannot be read: %s", error)
