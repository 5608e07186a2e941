"""The traces of a kernel: adopt one before Dynamo traces a function, else record one; audits and trials."""

from __future__ import annotations

import json
import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.core.canonical_json import corrupt
from nbcache.core.errors import FormatError
from nbcache.core.key import sha256
from nbcache.core.log import logger
from nbcache.core.model import Artifact
from nbcache.core.patches import Patches
from nbcache.kernel.events import FrameTraced, SpanEnded, SpanStarted, TraceAdopted, TraceAudited
from nbcache.kernel.prewarming import Slice, Steps
from nbcache.keys.fingerprints.objects import Unknown
from nbcache.storage.types import DIFFERS, NO_TRACE, RERUN
from nbcache.torch_bridge import events
from nbcache.torch_bridge.recording import count_and_record
from nbcache.torch_bridge.torch_behavior import TORCHBEHAVIOR
from nbcache.traces.adoption import Adoption, adopt, check_facts, load_graph
from nbcache.traces.facts import Frame, NoTrace, key_of, options_of
from nbcache.traces.format import RESUME_KINDS, Trace, from_bytes, to_bytes
from nbcache.traces.recording import Observations, make_trace, observe
from nbcache.traces.state_reads import ExecutedCode
from nbcache.traces.trace_rows import ReadTrace, read_trace

if TYPE_CHECKING:
    from nbcache.kernel.session import Session
    from nbcache.keys.cache_key import Dependencies
    from nbcache.torch_bridge.hooks import Context


_TYPE = "trace"
_SPAN = "nbcache.trace"
_MOST_CANDIDATES = 16
_UNKNOWN_PROGRAM = "a cell runs files, or files of your modules have changed since nbcache was loaded"
_OTHER_PROGRAM = "this kernel has run other cells"
_MOST_BYTES = 16 << 20
"""Limit on the traces that are read ahead, in bytes; traces of some hundred models fit."""
_MOST_RERUNS = 64
_RERUN = re.compile(r"[0-9a-f]{64} [0-9a-f]{64}")
"""Line of a rerun artifact: a place, and the digest of a trace that torch made there."""
_PLACES = frozenset({"co_filename", "co_firstlineno", "co_linetable"})
"""Fields of a code object that depend on its position in a file."""
_text = partial(json.dumps, sort_keys=True)
_RESUME_LINE = re.compile(r"(?<=torch_dynamo_resume_in_)(\w+?)_at_\d+")
"""Line number in the name of a function that resumes after a graph break."""


@dataclass
class _Compile:
    hooks: Any
    cache_entries: Any
    key: str = ""
    place: str = ""
    """Digest of the frame and of everything that has run before it."""
    adoption: Adoption | None = None
    observations: Observations | None = None
    graphs: dict[str, str] = field(default_factory=dict)
    """Name of a compiled function → AOTAutograd's key of its graph; empty if that key is insufficient."""
    graph: str = ""
    inputs: Sequence[Any] = ()
    backend_seconds: float = 0.0
    """Seconds that torch spent on compiling graphs during the tracing."""
    seconds: float = 0.0
    """Seconds of the tracing, without those."""
    graph_break: Any = None
    audited: tuple[str, Trace] | None = None
    """Digest of a stored artifact that fits, and its trace, if this compile audits it."""


@dataclass
class _Trial:
    """A trace of the sample, which the kernel records once and then adopts once while it is idle."""

    artifact: Artifact | None = None
    result: float | None = None


class _Thread(threading.local):
    call: _Compile | None = None
    sample_trial: _Trial | None = None
    """The trial of the sample that this thread runs; None while the thread runs the user's code."""


class Traces:
    """The traces of a kernel. After one fault, the kernel neither records nor adopts traces."""

    def __init__(
        self, torch: ModuleType, session: Session, serving: Callable[[], bool], dependencies: Dependencies
    ) -> None:
        self._torch = torch
        self._session = session
        self._serving = serving
        self._dependencies = dependencies
        self._here = _Thread()
        self._watched = self._guarded = Patches()
        self._off = False
        self._reruns = Reruns(session)
        self._draw = random.SystemRandom().random()  # leaves the user's random stream alone
        self._has_audited = False
        self._has_tried = False
        self._read_ahead: dict[str, ReadTrace | None] = {}
        """Digest of an artifact → its trace; None if it was used or cannot be read."""
        self._read_bytes = 0

    def off_because(self) -> str:
        """Return why this kernel can't use traces under any setting, as a clause; empty if it can."""
        if not TORCHBEHAVIOR.has_traces:
            return f"not tested with torch {self._torch.__version__}"
        return "something has failed, as a notice says" if self._off else ""

    def trace_frames(self, convert_frame: ModuleType, context: Context, patches: Patches) -> None:
        def compile(original: Any, *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            if not self._is_on():
                return original(*args, **kwargs)
            call, outer_call = _Compile(args[9], args[11]), self._here.call
            self._here.call = call
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                adoption, call.adoption = call.adoption, None
                if adoption is None:
                    raise
                adoption.take_back()
                if not isinstance(error, Exception):
                    raise
                self._fail("going on with a trace", error)
                return original(*args, **kwargs)
            finally:
                self._here.call = outer_call

        def compile_frame(original: Any, *args: Any, **kwargs: Any) -> Any:
            """Adopt a stored trace of the frame; else have torch trace it, and record the trace."""
            __tracebackhide__ = True
            call = self._here.call
            unsupported = kwargs.get("export") or kwargs.get("package") or kwargs.get("distributed_state")
            filtered = call is not None and getattr(call.hooks, "guard_filter_fn", None) is not None
            if call is None or not self._is_on() or unsupported or filtered or len(args) < 8:
                return original(*args, **kwargs)
            code, scope, values, _, closure, backend, one_graph, _ = args
            frame = Frame(code, scope, values, closure)
            trace = partial(original, *args, **kwargs)
            call.key = self._key(frame, backend, one_graph)
            if not (call.key and self._find_place(call)):
                return trace()
            if (output := self._adopt(call, frame, backend)) is not None:
                return output
            is_known_untraceable = not self._draws_audit() and self._session.find(NO_TRACE, call.place)
            if self._here.sample_trial is None and (events.is_restoring_only() or is_known_untraceable):
                return trace()
            if call.audited is None and not ExecutedCode.is_possible():
                self._log_refusal(code, NoTrace("a profiler runs"))
                return trace()
            return self._trace(call, frame, trace)

        patches.hook(convert_frame, "_compile", compile)
        patches.hook(convert_frame, "compile_frame", compile_frame)

    def trace_graphs(self, output_graph: ModuleType, context: Context, patches: Patches) -> None:
        def call_user_compiler(original: Any, graph: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            call = self._here.call
            if call is None or call.observations is None:
                return original(graph, module, *args, **kwargs)
            call.graph = str(module.meta.get("backend_id", ""))
            call.inputs = [argument.source for argument in graph.graphargs]
            began = time.perf_counter()
            try:
                return original(graph, module, *args, **kwargs)
            finally:
                call.graph = ""
                call.backend_seconds += time.perf_counter() - began

        patches.hook(output_graph.OutputGraph, "_call_user_compiler", call_user_compiler)

    def trace_keys(self, cache: ModuleType, context: Context, patches: Patches) -> None:
        def autograd_cache_key(original: Any, *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            result = original(*args, **kwargs)
            call = self._here.call
            if call is not None and call.graph:
                is_complete = self._dependencies.last_is_general()
                call.graphs[call.graph] = result[0] if is_complete and call.graph not in call.graphs else ""
            return result

        patches.hook(cache, "autograd_cache_key", autograd_cache_key)

    def watch_tracing(self, convert_frame: ModuleType, context: Context, patches: Patches) -> None:
        """Keep the patches for the hooks that record a tracing: see `recording.observe`."""
        self._watched = patches

    def build_guards(self, guards: ModuleType, context: Context, patches: Patches) -> None:
        """Keep the patches for the hooks that adopt a trace: see `adoption.adopt`."""
        self._guarded = patches

    def steps(self, run_sample: Callable[[], float | None]) -> Steps:
        """Yield work for idle times: try traces on the sample, once, and read stored traces."""
        if self._is_on() and not self._has_tried:
            self._has_tried = True
            trial = _Trial()
            for step in ("record a trace", "adopt a trace"):
                yield Slice(step, partial(self._run_trial, trial, run_sample))
        if not self._is_on():
            return
        for artifact in self._session.cache.at_hand(_TYPE):
            total = self._read_bytes + len(artifact.content)
            if artifact.digest not in self._read_ahead and total <= _MOST_BYTES:
                self._read_ahead[artifact.digest] = None
                self._read_bytes = total
                yield Slice("read a trace", partial(self._read, artifact))

    def _run_trial(self, trial: _Trial, run_sample: Callable[[], float | None]) -> None:
        self._here.sample_trial = trial
        try:
            if (result := run_sample()) is None:  # its artifacts are gone, or another thread compiles
                return
            if trial.result not in (None, result):
                raise RuntimeError(f"an adopted trace returns {result} instead of {trial.result}")
            trial.result = result
        except Exception as error:
            self._fail("trying a trace on a sample", error)
        finally:
            self._here.sample_trial = None

    def _read(self, artifact: Artifact) -> None:
        try:
            self._read_ahead[artifact.digest] = read_trace(artifact.content)
        except (FormatError, NoTrace) as error:  # `_adopt` reports it
            logger.debug("a trace cannot be read: %s", error)

    def _is_on(self) -> bool:
        return not self._off and self._session.settings.trace != "off" and self._serving()

    def _key(self, frame: Frame, backend: Any, one_graph: bool) -> str:
        try:
            packages_digest = self._dependencies.any_graph_digest()
            return key_of(self._torch, frame, backend, packages_digest, one_graph=one_graph)
        except (NoTrace, Unknown, RecursionError) as why:
            self._log_refusal(frame.code, why)
        except Exception as error:
            self._fail("finding the key of a trace", error)
        return ""

    def _find_place(self, call: _Compile) -> bool:
        """Return whether nbcache knows everything that has run before a frame; set the frame's place."""
        if self._here.sample_trial is not None:
            return True
        try:
            call.place = self._reruns.place(call.key)
        except Exception as error:
            self._fail("identifying what this kernel has run", error)
            return False
        if not call.place and self._session.find(_TYPE, call.key):
            self._session.emit(FrameTraced(**events.stamp(), reason=_UNKNOWN_PROGRAM))
        return bool(call.place)

    def _candidates(self, call: _Compile) -> Iterator[tuple[Artifact, bool]]:
        """Yield the traces to try, each with whether torch made it after the same program.

        The facts of the last one, which may be of another program, say what has changed.
        """
        if (trial := self._here.sample_trial) is not None:
            yield from () if trial.artifact is None else [(trial.artifact, True)]
            return
        stored, digests = self._session.find(_TYPE, call.key), self._reruns.traces_at(call.key, call.place)
        fitting = [artifact for artifact in stored if artifact.digest in digests]
        different = [artifact for artifact in stored if artifact.digest not in digests]
        yield from ((artifact, True) for artifact in fitting[:_MOST_CANDIDATES])
        yield from ((artifact, False) for artifact in different[:1])

    def _draws_audit(self) -> bool:
        """Return whether this kernel is drawn to audit one trace, and to retry functions without a trace."""
        audit = self._session.settings.audit
        return audit > 0 and self._draw < 1 / audit

    def _audits(self) -> bool:
        is_first, self._has_audited = not self._has_audited, True
        return self._session.settings.trace == "audit" or (self._draws_audit() and is_first)

    def _adopt(self, call: _Compile, frame: Frame, backend: Any) -> Any:
        """Return a Dynamo output from a trace; None if no trace fits, or the one that fits is audited."""
        self._session.emit(SpanStarted(**events.stamp(), name=_SPAN))
        load = partial(load_graph, options_of(self._torch, backend))
        key = call.key
        reasons: list[BaseException] = []
        try:
            for number, (artifact, is_rerun) in enumerate(self._candidates(call)):
                digest = artifact.digest
                if self._session.find(DIFFERS, digest):
                    continue  # an audit has found a difference
                try:
                    # For this adoption alone: another thread reads its own.
                    read = self._read_ahead.pop(digest, None) or read_trace(artifact.content)
                    self._read_ahead[digest] = None
                    if (trace := read.trace).key != key:
                        raise corrupt(
                            f"a trace of {trace.function}() is stored under the key of another function"
                        )
                    values = check_facts(self._torch, read, frame, thorough=number == 0)
                    if not is_rerun:
                        raise NoTrace(_OTHER_PROGRAM)
                    if (trial := self._here.sample_trial) is None and self._audits():
                        call.audited = digest, trace
                        return None
                    call.adoption = adopt(
                        self._torch, read, values, frame, call.hooks, call.cache_entries, load, self._guarded
                    )
                except (NoTrace, Unknown, RecursionError) as why:
                    reasons.append(why)
                    continue
                except FormatError as error:
                    self._session.reject(_TYPE, key, error)
                    continue
                if trial is not None:
                    _check_guards_fail(self._torch, call.adoption, frame)
                    return call.adoption.output
                self._session.cache.mark_restored(_TYPE, key)
                count_and_record(self._session, artifact, made=False)
                self._reruns.note(key, call.place, digest)
                self._session.emit(
                    TraceAdopted(
                        **events.stamp(),
                        guards=len(trace.guards),
                        facts=len(trace.facts) + len(trace.names),
                        once_seconds=trace.seconds,
                        graph_break_reason=_graph_break(self._session, trace, frame.code),
                    )
                )
                return call.adoption.output
        except Exception as error:
            if call.adoption is not None:
                call.adoption.take_back()
                call.adoption = None
            self._fail("adopting a trace", error)
        finally:
            self._session.emit(SpanEnded(**events.stamp(), name=_SPAN))
        if reasons:
            logger.debug("traced again: %s", "; ".join(map(str, reasons)))
            reason = events.with_cells(self._session, str(reasons[0])) or ""
            names_cause = getattr(reasons[0], "names_cause", False)
            self._session.emit(FrameTraced(**events.stamp(), reason=reason, names_cause=names_cause))
        return None

    def _trace(self, call: _Compile, frame: Frame, trace: Callable[[], Any]) -> Any:
        """Let Dynamo trace; record or audit the trace as soon as torch has built the guards."""
        __tracebackhide__ = True
        call.observations = observations = Observations()
        utils = sys.modules["torch._dynamo.utils"]
        breaks = len(utils.graph_break_reasons)
        start = time.perf_counter()
        executed = ExecutedCode(notes=call.audited is None)  # recording is slow, and an audit needs none
        with observe(observations, executed, self._watched):
            output = trace()
        call.seconds = time.perf_counter() - start - call.backend_seconds
        call.observations = None
        if observations.fault is not None:
            self._fail("watching Dynamo trace", observations.fault)
            return output
        call.graph_break = events.last_break(utils, breaks)
        build = output.build_guards

        def build_guards(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            built = build(*args, **kwargs)
            self._record(call, frame, output, observations)
            return built

        output.__dict__["build_guards"] = build_guards
        return output

    def _record(self, call: _Compile, frame: Frame, output: Any, observations: Observations) -> None:
        """Store the trace of a frame, or that it has none. Raise nothing, since torch calls this."""
        try:
            try:
                self._store(call, frame, output, observations)
            except (NoTrace, Unknown, FormatError, RecursionError) as why:
                self._log_refusal(frame.code, why)
                if call.audited is None and self._here.sample_trial is None:
                    self._session.cache.record(NO_TRACE, call.place, str(why).encode(), made=True)
        except Exception as error:
            self._fail("recording a trace", error)

    def _store(self, call: _Compile, frame: Frame, output: Any, observations: Observations) -> None:
        """Store the trace of a frame, or compare it with the audited one; raise NoTrace if it has none."""
        if not all(call.graphs.values()):
            raise NoTrace("its graph depends on state that torch's keys do not cover")
        trace = make_trace(self._torch, call.key, frame, output, observations, call.graphs, call.inputs)
        if call.audited is not None:
            self._compare(call, *call.audited, trace)
            return
        trace = replace(trace, seconds=round(call.seconds, 3), **_break_fields(call.graph_break, frame.code))
        artifact = Artifact(_TYPE, call.key, to_bytes(trace))
        if (trial := self._here.sample_trial) is not None:
            trial.artifact = artifact
            return
        newest = self._session.find(_TYPE, call.key)[:1]  # usually, an edit elsewhere changes no trace
        stored = from_bytes(newest[0].content) if newest else None
        is_new = stored is None or stored.all_facts != trace.all_facts or bool(difference(stored, trace))
        artifact = artifact if is_new else newest[0]
        count_and_record(self._session, artifact, made=is_new)
        self._reruns.note(call.key, call.place, artifact.digest)

    def _compare(self, call: _Compile, digest: str, stored: Trace, traced: Trace) -> None:
        """Compare a stored trace with torch's; if they differ, notify the user and stop using traces here."""
        parts = difference(stored, traced)
        self._session.emit(TraceAudited(**events.stamp(), differs=parts))
        if not parts:
            self._reruns.note(call.key, call.place, digest)
            logger.info("%s() was traced to audit its trace, which agrees", stored.function)
            return
        logger.info("%s() differs: %s; stored: %s; traced: %s", stored.function, parts, stored, traced)
        self._off = True
        session, key = self._session, stored.key
        session.cache.give_up(_TYPE, key, f"{parts} differ")
        session.cache.record(DIFFERS, digest, b"1", made=True)  # a snapshot may contain it
        if session.shared_client is not None and session.environment is not None:
            session.shared_client.withdraw(session.environment, _TYPE, key, digest)
        session.notice(
            f"the stored trace of {stored.function}() is not what torch traces now: {parts} differ. It "
            "was removed from the stores, copies of it in snapshots are ignored, and this kernel uses no "
            "traces. Set `trace=off`, and please report it",
            "trace-differs",
        )

    def _log_refusal(self, code: CodeType, why: BaseException) -> None:
        logger.info("%s() has no trace: %s", code.co_qualname, why)

    def _fail(self, action: str, error: Exception) -> None:
        """Stop recording and adopting: a fault of nbcache costs only the time of tracing."""
        self._off = True
        logger.info("%s failed", action, exc_info=error)
        self._session.notice(
            f"this kernel uses no traces from now on, because {action} failed: cells run, and "
            f"torch traces functions again. Please report it: {error!r}",
            "no-traces",
        )


def _check_guards_fail(torch: ModuleType, adoption: Adoption, frame: Frame) -> None:
    """Raise RuntimeError if the guards of the sample's trace also pass for int32, which it does not use."""
    tensors = {name: value for name, value in frame.values.items() if isinstance(value, torch.Tensor)}
    other = frame.values | {name: tensor.to(torch.int32) for name, tensor in tensors.items()}
    if adoption.output.build_guards().guard_manager.check(other):
        raise RuntimeError("the guards of an adopted trace hold for another dtype")


def _graph_break(session: Session, trace: Trace, code: CodeType) -> str | None:
    if not trace.break_reason or not trace.break_line:
        return trace.break_reason or None
    line = code.co_firstlineno + trace.break_line - 1
    return events.break_text(session, trace.break_reason, code.co_filename, line)


def _break_fields(reason: Any, code: CodeType) -> dict[str, Any]:
    if reason is None:
        return {}
    fields: dict[str, Any] = {"break_reason": events.words_of_break(reason.reason)}
    stack = getattr(reason, "user_stack", None)
    own_lines = {line for *_, line in code.co_lines()}
    if stack and stack[-1].filename == code.co_filename and stack[-1].lineno in own_lines:
        fields["break_line"] = max(0, stack[-1].lineno - code.co_firstlineno + 1)
    return fields


class Reruns:
    """The places of this kernel's frames, and the traces that this and earlier kernels made at them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._lines: dict[str, dict[str, None]] = {}
        """Key of a frame → its lines, the newest first."""

    def place(self, key: str) -> str:
        """Return the digest of a frame, its count and all that ran before it; empty if that is unknown."""
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        with self._lock:
            ran = self._session.program.digest(generated=cache_dir())
            self._counts[key] += 1
            return ran and sha256(f"{key} {ran} {self._counts[key]}".encode())

    def traces_at(self, key: str, place: str) -> Set[str]:
        stored = self._session.find(RERUN, key)
        with self._lock:
            lines = self._lines.setdefault(key, {})
            for artifact in stored:
                lines.update(dict.fromkeys(_RERUN.findall(artifact.content.decode("ascii", "replace"))))
            return {line.split()[1] for line in lines if line.startswith(place)}

    def note(self, key: str, place: str, trace: str) -> None:
        line = f"{place} {trace}"
        with self._lock:
            lines = self._lines.setdefault(key, {})
            if is_new := line not in lines:
                self._lines[key] = lines = dict.fromkeys(islice((line, *lines), _MOST_RERUNS))
            content = "\n".join(lines).encode("ascii")
        self._session.cache.record(RERUN, key, content, made=is_new)


def difference(stored: Trace, traced: Trace) -> str:
    """Return the name, a plural, of a part in which two traces differ; empty if they are equivalent.

    Ignore made-up names, positions in files, the order of guards, and facts, since those of `stored` hold.
    """
    parts = zip(_parts_to_compare(stored), _parts_to_compare(traced), strict=True)
    return next((part for (part, first), (_, second) in parts if first != second), "")


def _parts_to_compare(trace: Trace) -> Iterator[tuple[str, Any]]:
    names = {name: f"<{number}>" for number, (name, _, _) in enumerate(trace.installed)}
    sources: list[str] = []
    for kind, base, fields in trace.sources:
        row = [kind, None if base is None else sources[base], _normal_form(fields, names, sources)]
        sources.append(sha256(_text(row).encode("utf-8", "surrogatepass")))
    yield "its instructions", _text(_normal_form(trace.code, names))
    places: list[list[Any]] = []
    for _, kind, place in trace.installed:  # code that resumes after a graph break, without its position
        code = json.loads(_RESUME_LINE.sub(r"\1", place)) if kind in RESUME_KINDS else place
        places.append([kind, _normal_form(code, {})])
    yield "the globals that its code reads", places
    yield "the modules that its code reads", trace.imports
    yield "the keys of its graph", trace.autograd_key
    yield "the inputs of its graph", [sources[index] for index in trace.inputs]
    guards = [[sources[index], _normal_form(row, names, sources)] for index, *row in trace.guards]
    yield "its guards", sorted(map(_text, guards))
    yield "the sizes that it guards", sorted(_text([sources[index], *row]) for index, *row in trace.shapes)
    yield "the keys that it guards in order", sorted(sources[index] for index in trace.key_order)
    yield "its side effects", trace.replayed
    yield "torch's global settings", trace.state
    yield "its outputs", trace.has_outputs


def _normal_form(value: Any, names: Mapping[str, str], sources: Sequence[str] = ()) -> Any:
    """Return JSON without positions in files, and with other names and sources in place of source indices."""
    if isinstance(value, Mapping):
        return {
            name: _normal_form(item, names, sources) for name, item in value.items() if name not in _PLACES
        }
    if isinstance(value, list):
        if len(value) == 2 and value[0] == "source" and type(value[1]) is int:
            return ["source", sources[value[1]]]
        return [_normal_form(item, names, sources) for item in value]
    return names.get(value, value) if isinstance(value, str) else value
