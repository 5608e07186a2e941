"""Report torch's spans and cache lookups as tracking events."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from nbcache.core.model import Outcome
from nbcache.core.patches import Intended, Patches
from nbcache.core.reports import RESUMED
from nbcache.kernel.events import (
    INTERRUPTED,
    AutogradLookup,
    FrameCompiled,
    KernelTuned,
    SpanEnded,
    SpanStarted,
)
from nbcache.kernel.explain.why import break_action
from nbcache.kernel.session import Session
from nbcache.torch_bridge import frames, gc_pause
from nbcache.torch_bridge.hooks import Context

_restraint = threading.local()
"""`on`: True if this thread may only restore stored artifacts."""
_AUTOGRAD = {
    "autograd_cache_hit": Outcome.HIT,
    "autograd_cache_miss": Outcome.MISS,
    "autograd_cache_bypass": Outcome.BYPASS,
}
_breaks = threading.local()
"""`before`: the number of graph breaks in torch's list when this thread's compile began."""
_FOLLOWING = "following a compile"
_FIRST_OF_TORCH = "torch._utils"
_RESUMED = re.compile(r"(?:torch_dynamo_resume_in_)+(.+?)(?:_at_\d+)+")
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_WRAPPERS = os.path.join("torch", "_dynamo", "external_utils.py")
_PASSES_ALL = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
"""Flags of a wrapper's code, which passes on all of its arguments."""
_CELL_FILE = re.compile(r"[\w/.]*cell-[0-9a-f]{16}\.py")
_TRACED = re.compile(r'File "([^"\n]*)", line (\d+)')
_USERS_TRACE = "User stack trace"
_GUARD_OF = re.compile(r"\W*\d+/\d+: ")
_BUILTIN = re.compile(r"does not know how to trace builtin operator `(\w+)`")
_LIMIT = re.compile(r"exceeding the (\w+) cache size limit \(currently set to (\d+)\)")
_FRAME = "dynamo"
"""The span of a frame, from its tracing to its guards."""
_BACKWARD = "entire_backward_compile"
"""The span of a backward that compiles at its first run: on a GPU in a thread of autograd."""
_TUNING = frozenset(
    f"CachingAutotuner.{way}"
    for way in ("benchmark_all_configs", "combo_sequential_autotune", "coordinate_descent_tuning")
)
"""Spans in which configurations of a Triton kernel are benchmarked."""
_PASSES = "pass."
"""Prefix of the spans of graph passes, which are about 40 for each graph, and no phases."""


class NotStored(Intended):
    """An artifact is not stored, and this thread must not compile it."""


@contextlib.contextmanager
def restoring_only() -> Iterator[None]:
    """Make this thread raise NotStored instead of compiling."""
    _restraint.on = True
    try:
        yield
    finally:
        _restraint.on = False


def is_restoring_only() -> bool:
    return getattr(_restraint, "on", False)


def check_may_compile(name: str) -> None:
    if is_restoring_only():
        raise NotStored(name)


def stamp() -> dict[str, Any]:
    from torch._guards import CompileContext

    compile_id = CompileContext.current_compile_id()
    return {
        "time": time.perf_counter(),
        "thread": threading.get_ident(),
        "compile_id": None if compile_id is None else str(compile_id),
    }


def follow_spans(utils: ModuleType, context: Context, patches: Patches) -> None:
    """Follow torch's phases and cache lookups, all of which `ChromiumEventLogger` receives."""
    import torch

    session = context.session
    # torch creates its logger at the first event, without a lock. So a thread that hashes sources could
    # replace the logger of a running compile, with its data.
    utils.get_chromium_event_logger()
    heap = gc_pause.HeapAside()
    session.cell_ended.append(heap.reset)  # an interrupt may have skipped the end of a span
    patches.undo(lambda: session.cell_ended.remove(heap.reset))
    patches.undo(heap.reset)

    def log_span(
        original: Any, self: Any, name: str, time_ns: int, phase: str, *args: Any, **kwargs: Any
    ) -> Any:
        begins = phase == "B"
        if begins and name in (_FRAME, _BACKWARD):
            session.attempt("settling torch's settings", context.settle)
        if name == _FRAME:
            (heap.begin if begins else heap.end)()
            if begins:
                session.attempt("settling the order of modules", partial(settle_import_order, torch))
        if not name.startswith(_PASSES):
            metadata = (args[0] if args else kwargs.get("metadata")) or {}
            session.attempt(_FOLLOWING, partial(_span, utils, context, name, begins, metadata))
        return original(self, name, time_ns, phase, *args, **kwargs)

    def log_lookup(original: Any, self: Any, name: str, time_ns: int, *args: Any, **kwargs: Any) -> Any:
        if (outcome := _AUTOGRAD.get(name)) is not None:
            metadata = (args[0] if args else kwargs.get("metadata")) or {}
            session.attempt(_FOLLOWING, partial(_autograd, session, outcome, metadata))
        return original(self, name, time_ns, *args, **kwargs)

    patches.hook(utils.ChromiumEventLogger, "_log_timed_event", log_span)
    patches.hook(utils.ChromiumEventLogger, "log_instant_event", log_lookup)


def name_cells(convert_frame: ModuleType, context: Context, patches: Patches) -> None:
    """Name cells as the user does, `In[4]`, in the text that torch adds to an error of the user's code."""

    def augment_exc_message(original: Any, error: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(error, *args, **kwargs)
        if error.args and type(error.args[0]) is str:
            name = partial(with_cells, context.session, error.args[0])
            error.args = (context.session.attempt(_FOLLOWING, name) or error.args[0], *error.args[1:])
        return result

    patches.hook(convert_frame, "augment_exc_message", augment_exc_message)


def _span(utils: ModuleType, context: Context, name: str, begins: bool, metadata: Mapping[str, Any]) -> None:
    at, session = stamp(), context.session
    if begins:
        function = ""
        if name == _FRAME:
            function = _current_function()
            _breaks.before = len(utils.graph_break_reasons)
        if name in _TUNING:  # its compile has ended, but torch's event has the compile's id
            kernel = {"compile_id": metadata.get("compile_id"), "name": str(metadata.get("kernel_name"))}
            session.emit(KernelTuned(**{**at, **kernel}))
        session.emit(SpanStarted(**at, name=name, function=function))
        return
    if name == _FRAME:
        # If describing the frame fails, its graphs are reported without the description.
        frame = session.attempt(_FOLLOWING, partial(_frame, utils, session, at, metadata))
        if frame is not None:
            session.emit(frame)
    if metadata.get("cache_state") == "disabled" and (why := context.why_disabled()) is not None:
        metadata = {**metadata, "cache_bypass_reason": why}
    session.emit(SpanEnded(**at, name=name, attributes=metadata))


def _autograd(session: Session, outcome: Outcome, metadata: Mapping[str, Any]) -> None:
    session.emit(
        AutogradLookup(
            **stamp(),
            outcome=outcome,
            key=metadata.get("key"),
            reason=_first_line(metadata.get("cache_bypass_reason")),
            forward_saved_seconds=_scale(metadata.get("forward_time_saved_ms"), 1e-3),
            backward_saved_seconds=_scale(metadata.get("backward_time_saved_ms"), 1e-3),
        )
    )


def _current_function() -> str:
    """Return the name of the function that Dynamo compiles; of the wrapped one, if that is a wrapper."""
    code, variables = frames.read(frames.CODE), frames.read(frames.FRAME_LOCALS)
    if code is None or not isinstance(variables, dict):
        return _function_name(code)
    if code.co_name == "inner" and code.co_filename.endswith(_WRAPPERS):  # torch's own
        called = variables.get("fn")
        called = called.func if type(called) is partial else called
        called = called if isinstance(called, (FunctionType, MethodType)) else type(called)
    else:
        values = [variables.get(name) for name in code.co_freevars]
        functions = [value for value in values if type(value) is FunctionType]
        if code.co_flags & _PASSES_ALL != _PASSES_ALL or len(functions) != 1:
            return _function_name(code)
        called = functions[0]
    return str(called.__qualname__).rpartition("<locals>.")[2]


def _function_name(code: CodeType | None) -> str:
    """Return a name such as `Network.forward`, or `train_step (resumed)` after a graph break."""
    if code is None:
        return ""
    if match := _RESUMED.fullmatch(code.co_name):
        return match[1] + RESUMED
    return code.co_qualname.rpartition("<locals>.")[2]


def _frame(
    utils: ModuleType, session: Session, at: dict[str, Any], metadata: Mapping[str, Any]
) -> FrameCompiled:
    file, line = str(metadata.get("co_filename") or ""), metadata.get("co_firstlineno")
    is_wrapper = file.startswith(_OURS) or file.endswith(_WRAPPERS)  # such as nbcache's frame for `options`
    where = "" if is_wrapper else _place(session, file)
    breaks = len(utils.graph_break_reasons)
    # Most breaks restart the tracing, except one at a jump, such as an `if` on data.
    broke = bool(metadata.get("restart_reasons")) or breaks > getattr(_breaks, "before", breaks)
    last = last_break(utils) if broke else None
    metrics = next(iter(reversed(utils.get_compilation_metrics())), None)
    if metrics is not None and str(metrics.compile_id) != at["compile_id"]:
        metrics = None
    function = _current_function() or str(metadata.get("co_name") or "?")
    recompiled = with_cells(session, _failed_guards(getattr(metrics, "recompile_reason", None)))
    failure = _failure(metadata)
    versions = int(metadata.get("cache_size") or 0) + 1  # torch drops versions of deleted objects
    limit = int(getattr(sys.modules["torch._dynamo.config"], "recompile_limit", 0))
    if recompiled or failure:
        _warn_of_limit(session, function, versions if recompiled and not failure else 0, limit)
        _warn_of_skip(session, function, file)
    return FrameCompiled(
        **at,
        function=function,
        location=f"{where}:{line}" if where else "",
        function_cell=session.report_log.code_cell(file),
        operators=metadata.get("graph_op_count"),
        recompile_reason=recompiled,
        versions=versions if recompiled else 0,
        recompile_limit=limit if recompiled else 0,
        graph_break_reason=last and graph_break(session, last.reason, getattr(last, "user_stack", None)),
        failure=failure,
    )


def _failed_guards(text: str | None) -> str | None:
    """Return the guards that failed, one a line, without stack traces (since 2.13)."""
    if not text:
        return text
    guards, within = [], False
    for line in map(str.strip, text.splitlines()):
        within = line.startswith(_USERS_TRACE) or (within and not _GUARD_OF.match(line))
        if not within and line:
            guards.append(" ".join(line.split()))
    return "\n".join(guards)


def _warn_of_limit(session: Session, function: str, versions: int, limit: int) -> None:
    """Warn if a function is one version below torch's limit, or has exceeded the limit."""
    error = sys.exc_info()[1]
    reached = _LIMIT.search(str(error)) if type(error).__module__ == "torch._dynamo.exc" else None
    eagerly = "calls that fit none of these run eagerly; %nbcache why says what differs"
    if reached is not None:
        setting = f"torch._dynamo.config.{reached[1]}"
        session.notice(
            f"{function} has {reached[2]} versions, the limit ({setting}): {eagerly}", "recompile-limit"
        )
    elif limit > 2 and versions + 1 == limit:
        session.notice(
            f"{function} has {versions} of at most {limit} versions: one more, and {eagerly}",
            "recompile-limit",
        )


def _warn_of_skip(session: Session, function: str, file: str) -> None:
    """Warn if torch skips a whole function, as for a graph break within a loop."""
    error = sys.exc_info()[1]
    if type(error).__name__ != "Unsupported" or getattr(error, "skip_frame", None) is not True:
        return
    if frames.read(frames.ONE_GRAPH) or _is_torch_file(file):  # with fullgraph=True torch raises
        return
    words = graph_break(session, getattr(error, "msg", error), getattr(error, "real_stack", None))
    session.notice(
        f"{function} runs as plain Python, and torch compiles no part of it: {words}; {break_action(words)}",
        "not-compiled",
    )


def _failure(metadata: Mapping[str, Any]) -> str | None:
    error = None if metadata.get("has_guarded_code") else sys.exc_info()[1]  # torch records no interrupt
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return _first_line(metadata.get("fail_reason")) or (None if error is None else type(error).__name__)


def with_cells(session: Session, text: str | None) -> str | None:
    """Replace cells' files in `text`, which torch often shortens, by the cells' labels, such as `In[3]`."""
    return text and _CELL_FILE.sub(lambda match: _place(session, match[0]), text)


def user_line(session: Session, trace: str) -> str:
    """Return the innermost line of a stack trace outside torch, such as `In[4]:7`; empty without one."""
    for file, line in reversed(_TRACED.findall(trace)):
        if not _is_torch_file(file):
            return f"{_place(session, file).rpartition(os.sep)[2]}:{line}"
    return ""


def _is_torch_file(file: str) -> bool:
    return file.startswith(os.path.join(os.path.dirname(str(sys.modules["torch"].__file__)), ""))


def _place(session: Session, file: str) -> str:
    cell = session.report_log.code_cell(file)
    return cell.label if cell else file


def graph_break(session: Session, reason: Any, stack: Any) -> str:
    words = words_of_break(reason)
    return break_text(session, words, stack[-1].filename, stack[-1].lineno) if stack else words


def last_break(utils: ModuleType, begin: int = 0) -> Any:
    reasons = reversed(utils.graph_break_reasons[begin:])
    return next((reason for reason in reasons if getattr(reason, "graph_break", True)), None)


def break_text(session: Session, words: str, file: str, line: int) -> str:
    return f"{words} ({_place(session, file)}:{line})"


def words_of_break(reason: object) -> str:
    lines = [line.strip() for line in str(reason).splitlines()]
    texts = (line.partition(":")[2].strip() for line in lines if line.startswith("Explanation:"))
    explanation = next(texts, "")
    if lines[0].startswith("generic_jump"):  # the only reason that torch does not explain
        return "an `if`, `while` or `assert` asks for the value of a tensor"
    if (builtin := _BUILTIN.search(explanation)) is not None:
        return f"torch cannot trace the built-in `{builtin[1]}`"
    return f"{lines[0]}: {explanation}" if explanation else lines[0]


def _scale(value: Any, unit: float) -> float | None:
    return None if value is None else float(value) * unit


def _first_line(value: Any) -> str | None:
    return str(value).strip().splitlines()[0] if value and str(value).strip() else None


def settle_import_order(torch: Any) -> list[str]:
    """Move modules with an attribute `torch` that precede torch in `sys.modules` to its end; return names.

    torch's keys then do not depend on imports before torch (2.13). A key is a hash of pickled bytes. pickle
    names `torch.contiguous_format`, which every tensor's metadata holds, after the first module that has it:
    `torch._utils`, or the notebook's namespace if `multiprocessing` has added it before as `__mp_main__`.
    """
    earlier = []
    for name, module in sys.modules.copy().items():
        if name == _FIRST_OF_TORCH:
            break
        # Not by getattr: a lazy module would begin to import.
        if name not in ("__main__", "torch") and getattr(module, "__dict__", {}).get("torch") is torch:
            earlier.append(name)
    for name in earlier:
        # Another thread that imports this module waits for its lock, and then looks it up again.
        with importlib._bootstrap._ModuleLockManager(name):  # type: ignore[attr-defined]
            if name in sys.modules:
                module = sys.modules[name]
                try:
                    del sys.modules[name]
                finally:  # even after an interrupt in between
                    sys.modules[name] = module
    return earlier
