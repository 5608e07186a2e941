"""Run a call eager and compiled, and measure seconds, results, graph breaks, recompiles and memory.

`torch._dynamo.explain` would find the graph breaks, but it discards all of the user's compiled code.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import inspect
import os
import re
import time
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch._dynamo.config
import torch._inductor.config
from torch._dynamo import utils
from torch._dynamo.eval_frame import OptimizedModule, innermost_fn
from torch.testing._comparison import default_tolerances
from torch.utils import _pytree
from torch.utils.benchmark import Timer
from torch.utils.benchmark.utils.timer import timer as seconds_now  # it waits for the GPU

from nbcache.core.errors import NbcacheError
from nbcache.core.model import Direction
from nbcache.core.reports import GraphRecord
from nbcache.core.text import counted, one_line
from nbcache.kernel.explain.diagnosis import (
    Agreement,
    Break,
    Comparison,
    Diagnosis,
    Recompile,
    Resized,
    Timing,
)
from nbcache.kernel.explain.guards import readable, recompile_action
from nbcache.kernel.explain.why import break_action
from nbcache.kernel.session import Session
from nbcache.torch_bridge.call_state import State, process_state, seed_all
from nbcache.torch_bridge.events import graph_break, user_line, with_cells, words_of_break

_WARM_UP = 2
"""Calls before the timed ones; torch records CUDA graphs in the second."""
_TURN_SECONDS = 0.1
_MOST_SECONDS = 10.0
"""The last turn begins within this time."""
_OFTEN = 3
"""Number of recompiles that is no coincidence."""
_LONGEST = 200
_SUSPECT = (Agreement.LARGER, Agreement.DIFFERENT)
_LEVELS = ((0.0, Agreement.EQUAL), (1.0, Agreement.USUAL), (100.0, Agreement.LARGER))
"""Multiples of the default tolerance, each with the agreement that it means."""
_NUMBER = re.compile(r"\d+\.\d{3,}(?:e[-+]\d+)?")
_RANDOM = "it draws random numbers, and compiled code draws others by the same seed"
_RESTLESS = "run eager twice by the same seed, it does not return the same"
_COMPILE_ID = re.compile(r"^\d+/\d+: ")
_COMMENT = re.compile(r"\s+# ")
_PACKAGES = re.compile(r"\(/\S*/(?:site|dist)-packages/")


@dataclass(frozen=True, slots=True)
class Call:
    text: str
    """The expression, on one line."""
    name: str
    """The function in the expression."""
    function: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def run(self, function: Any = None) -> Any:
        __tracebackhide__ = True
        return (function or self.function)(*self.args, **self.kwargs)

    def run_eager(self) -> Any:
        __tracebackhide__ = True
        with torch.compiler.set_stance("force_eager"):
            return self.run()

    def with_tensors(self, change: Callable[[Any], Any]) -> Call:
        args, kwargs = _pytree.tree_map_only(torch.Tensor, change, (self.args, dict(self.kwargs)))
        return replace(self, args=args, kwargs=kwargs)

    def tensors(self) -> list[Any]:
        tensors: list[Any] = []
        self.with_tensors(tensors.append)
        return tensors


class _CompiledCallFailed(Exception):
    """The compiled call raised this error's cause."""


def diagnose(session: Session, call: Call, mode: str, turns: int) -> Diagnosis:
    """Run a call eager and compiled, by turns, and restore the state that it can change.

    The call's output is discarded. Raises the call's own errors.
    """
    __tracebackhide__ = True
    if torch._dynamo.config.disable:
        raise NbcacheError(
            "torch.compile is switched off, so nothing can be compared",
            where="%nbcache diagnose",
            next_step="set torch._dynamo.config.disable = False, and leave TORCHDYNAMO_DISABLE unset",
        )
    call = replace(call, function=original(call.function)).with_tensors(_without_graph)
    first_graph = len(session.graphs)
    with (
        session.report_log.holding() as notices,
        process_state(),
        torch.compiler.set_stance("default"),
        open(os.devnull, "w", encoding="utf-8", errors="replace") as devnull,
        contextlib.redirect_stdout(devnull),
        contextlib.redirect_stderr(devnull),
    ):
        state = State({call.name: call.function, "arguments": call.args, **call.kwargs})
        reason = "cannot be copied: changes that the calls make to it stay"
        notes = tuple(f"{place} ({kind}) {reason}" for place, kind in state.unsaved.items())
        diagnosis = Diagnosis(call.text, mode, notes=notes)
        try:
            _Run(session, call, state, diagnosis).measure(turns)
        finally:
            try:
                failures = state.restore()
            except KeyboardInterrupt:  # a second interrupt, which may leave a container empty
                state.restore()
                raise
            finally:
                names = {graph.function for graph in session.graphs[first_graph:]}
                session.forget_graphs(first_graph)  # trials: not the user's compiles
    names.add(call.name.rpartition(".")[2])
    for text, slug in notices:
        if not any(text.startswith(f"{name} ") for name in names):  # else it concerns only this diagnosis
            session.notice(text, slug)
    if failures:
        diagnosis.notes += (f"{counted(failures, 'value')} that the calls changed could not be put back",)
    return diagnosis


@dataclass
class _Run:
    session: Session
    call: Call
    state: State
    diagnosis: Diagnosis

    def measure(self, turns: int) -> None:
        __tracebackhide__ = True
        eager, diagnosis = self._eager_parts(seed=0), self.diagnosis
        tensors = [*self.call.tensors(), *self.state.tensors.values()]
        diagnosis.device = next((str(t.device) for t in tensors if t.device.type != "cpu"), "cpu")
        diagnosis.size = _shared_size(self.call)
        diagnosis.eager_peak_bytes = _peak(self.call.run_eager)
        try:
            self._measure_compiling(eager, turns)
        except _CompiledCallFailed as error:
            diagnosis.failure, (diagnosis.eager,) = _short(error), self._timings(turns)
        gc.collect()  # free compiled code now, before the user's next cell

    def _measure_compiling(self, eager: dict[str, Any], turns: int) -> None:
        diagnosis, first_break = self.diagnosis, len(utils.graph_break_reasons)
        begin, run = len(self.session.graphs), self._compiled_call(mode=diagnosis.mode)
        seconds, output = _time_call(run)
        comparison = compare(eager, parts_of(output, self.state.tensors))
        del output
        graphs = self.session.graphs[begin:]
        forward = [graph for graph in graphs if graph.direction is not Direction.BACKWARD]
        breaks = self._graph_breaks(forward, utils.graph_break_reasons[first_break:])
        again = len(self.session.graphs)
        seconds += sum(_time_call(run)[0] for _ in range(_WARM_UP))
        warm = len(self.session.graphs)
        eager_timing, timing = self._timings(turns, run)
        recompiles = tuple(_recompiles(self.session.graphs[again:], warm - again))
        saved = sum(graph.saved_seconds or 0.0 for graph in self.session.graphs[begin:])
        diagnosis.peak_bytes = _peak(run)
        if diagnosis.size is not None and all(recompile.settled for recompile in recompiles):
            diagnosis.resized = tuple(self._try_sizes(run, diagnosis.size))
        if comparison.agreement in _SUSPECT:
            comparison = self._confirm(comparison, eager)
        diagnosis.eager, diagnosis.compiled, diagnosis.comparison = eager_timing, timing, comparison
        diagnosis.graphs, diagnosis.breaks, diagnosis.recompiles = len(forward), breaks, recompiles
        diagnosis.compile_seconds = max(seconds - (1 + _WARM_UP) * timing.median, 0.0)
        diagnosis.saved_seconds = max(saved, 0.0)

    def _eager_parts(self, seed: int) -> dict[str, Any]:
        __tracebackhide__ = True
        self.state.restore()
        seed_all(seed)
        return parts_of(self.call.run_eager(), self.state.tensors)

    def _compiled_call(self, **options: Any) -> Callable[..., Any]:
        """Restore the state; return the call, which compiles at its first run.

        Before torch 2.13, it shares compiled code of functions that are called at a graph break.
        """
        if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
            options["isolate_recompiles"] = True
        function = torch.compile(_with_own_code(self.call.function), **options)

        def run(call: Call = self.call) -> Any:
            if torch.cuda.is_initialized():
                torch.compiler.cudagraph_mark_step_begin()
            try:
                return call.run(function)
            except Exception as error:
                raise _CompiledCallFailed from error

        self.state.restore()
        seed_all(0)
        return run

    def _timings(self, turns: int, *compiled: Callable[[], Any]) -> list[Timing]:
        """Time eager and compiled calls by turns, so that other load on the machine slows both."""
        __tracebackhide__ = True
        self.state.restore()
        threads, runs = torch.get_num_threads(), (self.call.run, *compiled)
        timers = [Timer("run()", globals={"run": run}, num_threads=threads) for run in runs]
        seconds, began = [list[float]() for _ in runs], time.perf_counter()
        for _ in range(turns):
            for timer, stance, row in zip(timers, ("force_eager", "default"), seconds, strict=False):
                with torch.compiler.set_stance(stance):
                    row += timer.blocked_autorange(min_run_time=_TURN_SECONDS).times
            if time.perf_counter() - began > _MOST_SECONDS:
                break
        return [Timing(tuple(row)) for row in seconds]

    def _confirm(self, comparison: Comparison, eager: dict[str, Any]) -> Comparison:
        """Return the comparison, or a fairer one if eager calls do not reproduce their results."""
        if compare(eager, self._eager_parts(seed=0)).agreement in _SUSPECT:
            return Comparison(Agreement.UNKNOWN, message=_RESTLESS)
        if compare(eager, self._eager_parts(seed=1)).agreement not in _SUSPECT:
            return comparison
        with torch._inductor.config.patch(fallback_random=True):  # the same random numbers as in eager mode
            output = self._compiled_call(mode=self.diagnosis.mode)()
        comparison = compare(eager, parts_of(output, self.state.tensors))
        if comparison.agreement is Agreement.DIFFERENT:
            return Comparison(Agreement.UNKNOWN, message=_RANDOM)
        self.diagnosis.notes += ("it draws random numbers: results were compared with fallback_random=True",)
        return comparison

    def _graph_breaks(self, graphs: Sequence[GraphRecord], reasons: Sequence[Any]) -> tuple[Break, ...]:
        session = self.session
        texts = {graph.graph_break_reason: None for graph in graphs if graph.graph_break_reason}
        for reason in reasons:
            if reason.graph_break:
                texts[graph_break(session, reason.reason, reason.user_stack)] = None
        if not graphs and not texts:  # torch skipped the function, and gives the reason only here
            try:
                self._compiled_call(backend="eager", fullgraph=True)()
            except _CompiledCallFailed as error:
                text = str(error.__cause__).strip()
                texts[f"{words_of_break(text)} ({user_line(session, text)})"] = None
        lines = [_PACKAGES.sub("(", one_line(with_cells(session, text) or "")) for text in texts]
        return tuple(Break(line, break_action(line)) for line in lines)

    def _try_sizes(self, run: Callable[..., Any], size: int) -> Iterator[Resized]:
        # The double size is first, since torch then compiles for any size. torch specializes on size 1.
        for other in dict.fromkeys(n for n in (2 * size, size + 1, size // 2) if n > 1 and n != size):
            call = self.call.with_tensors(partial(_resize, size, other))
            first_graph = len(self.session.graphs)
            try:
                call.run_eager()
                seconds, _ = _time_call(partial(run, call))
            except _CompiledCallFailed as error:
                yield Resized(other, failure=_short(error))
            except Exception as error:
                yield Resized(other, refused=_short(error))
            else:
                recompiled = [graph for graph in self.session.graphs[first_graph:] if graph.recompile_reason]
                guards = tuple(dict.fromkeys(map(_guard, recompiled)))
                action = recompile_action(recompiled[0].recompile_reason or "") if recompiled else ""
                yield Resized(other, seconds, guards, action)


def original(value: Any) -> Any:
    """Return the module or function of which `value` is the compiled form; else `value` itself."""
    if isinstance(value, OptimizedModule):
        return original(value._orig_mod)
    if getattr(value, "_torchdynamo_disable", False) or not isinstance(value, types.FunctionType):
        return value
    # A user's wrapper of a compiled function has the attributes of that function, too.
    is_torch_wrapper = value.__code__.co_filename.endswith(os.path.join("torch", "_dynamo", "eval_frame.py"))
    return innermost_fn(value) if is_torch_wrapper else value


def _with_own_code(function: Any) -> Any:
    """Return a copy of the function with its own code object, since Dynamo stores results by code object."""
    if isinstance(function, types.MethodType):
        return types.MethodType(_with_own_code(function.__func__), function.__self__)
    if isinstance(function, types.FunctionType) and not function.__module__.startswith("torch."):
        # Dynamo adds names to the namespace, so the twin gets a copy.
        code, scope, name = function.__code__.replace(), dict(function.__globals__), function.__name__
        twin = types.FunctionType(code, scope, name, function.__defaults__, function.__closure__)
        twin.__kwdefaults__, twin.__qualname__ = function.__kwdefaults__, function.__qualname__
        twin.__dict__.update(function.__dict__)
        return twin

    def forward(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    name = getattr(function, "__name__", type(function).__name__)  # for reports
    forward.__code__ = forward.__code__.replace(co_name=name, co_qualname=name)
    return forward


def _without_graph(tensor: Any) -> Any:
    return tensor if tensor.is_leaf else tensor.detach().requires_grad_(tensor.requires_grad)


def _shared_size(call: Call) -> int | None:
    sizes = [tensor.shape[0] for tensor in call.tensors() if tensor.ndim and tensor.shape[0]]
    return Counter(sizes).most_common(1)[0][0] if sizes else None


def _resize(size: int, other: int, tensor: Any) -> Any:
    if not tensor.ndim or tensor.shape[0] != size:
        return tensor
    rows = torch.cat([tensor.detach()] * -(-other // size))
    return rows[:other].clone().requires_grad_(tensor.requires_grad)


def parts_of(output: Any, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return place → copy, for tensors and numbers in `output`, and for `tensors` and their gradients.

    Parameters are left out: an optimizer that divides by tiny gradients amplifies small differences.
    """
    parts = dict(_leaves("output", output))
    for place, tensor in tensors.items():
        if not isinstance(tensor, torch.nn.Parameter):
            parts[place] = tensor
        if tensor.is_leaf and tensor.grad is not None:
            parts[f"{place}.grad"] = tensor.grad
    return {place: part.detach().to("cpu", copy=True) for place, part in parts.items()}


def _leaves(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    # Most Python floats are results of `.item()` on a float32 tensor.
    numbers = {bool: torch.bool, int: torch.int64, float: torch.float32, complex: torch.complex64}
    for path, leaf in _pytree.tree_leaves_with_path(value):
        at = place + _pytree.keystr(path)
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            for item in dataclasses.fields(leaf):
                yield from _leaves(f"{at}.{item.name}", getattr(leaf, item.name, None))
        elif isinstance(leaf, torch.Tensor):
            yield at, leaf
        elif type(leaf) in numbers:
            with contextlib.suppress(OverflowError, RuntimeError):  # an integer that has no dtype
                yield at, torch.tensor(leaf, dtype=numbers[type(leaf)])


def compare(eager: Mapping[str, Any], compiled: Mapping[str, Any]) -> Comparison:
    """Return the comparison at the place with the least agreement of the two calls' parts."""
    for place in {**eager, **compiled}:
        if not (place in eager and place in compiled):
            only = "eager" if place in eager else "compiled"
            return Comparison(Agreement.DIFFERENT, place, f"only the {only} call has it")
    comparisons = [_compare(place, eager[place], compiled[place]) for place in eager]
    return max(comparisons, key=lambda one: [*Agreement].index(one.agreement), default=Comparison())


def _compare(place: str, eager: Any, compiled: Any) -> Comparison:
    relative, absolute = default_tolerances(eager.dtype)
    message = ""
    for factor, agreement in _LEVELS:
        try:
            torch.testing.assert_close(
                compiled, eager, rtol=factor * relative, atol=factor * absolute, equal_nan=True
            )
        except AssertionError as error:
            message = message or _figures(str(error))
        except Exception as error:  # a layout or subclass without these operators
            return Comparison(Agreement.UNKNOWN, place, one_line(str(error), _LONGEST))
        else:
            return Comparison(agreement, place if message else "", message)
    return Comparison(Agreement.DIFFERENT, place, message)


def _figures(message: str) -> str:
    text = ", ".join(message.splitlines()[2:]) or message
    return one_line(_NUMBER.sub(lambda match: f"{float(match[0]):.3g}", text), _LONGEST)


def _recompiles(graphs: Sequence[GraphRecord], warm: int) -> Iterator[Recompile]:
    functions: defaultdict[str, list[int]] = defaultdict(list)
    for index, graph in enumerate(graphs):
        if graph.recompile_reason and graph.direction is not Direction.BACKWARD:
            functions[graph.function].append(index)
    for function, indices in functions.items():
        last, settled = graphs[indices[-1]], indices[-1] < warm or len(indices) < _OFTEN
        action = recompile_action(last.recompile_reason or "")
        yield Recompile(function, len(indices), settled, _guard(last), action)


def _guard(graph: GraphRecord) -> str:
    lines = (graph.recompile_reason or "").strip().splitlines() or [""]
    guard, *comments = _COMMENT.split(_COMPILE_ID.sub("", readable(lines[0])))
    return one_line(f"{guard} ({comments[-1]})" if len(comments) > 1 else guard, _LONGEST)


def _time_call(run: Callable[[], Any]) -> tuple[float, Any]:
    began = seconds_now()
    result = run()
    return seconds_now() - began, result


def _peak(run: Callable[[], Any]) -> int | None:
    __tracebackhide__ = True
    if not torch.cuda.is_initialized():
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    allocated = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - allocated)


def _short(error: BaseException) -> str:
    error = error.__cause__ or error
    return one_line(f"{type(error).__name__}: {error}".rstrip(": \n"), _LONGEST)
