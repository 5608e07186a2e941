"""`%nbcache diagnose CALL`: parses the line, evaluates the call's arguments, and renders the diagnosis."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from nbcache.core.text import NOTHING, counted, duration, one_line, size
from nbcache.kernel.explain.diagnosis import (
    Agreement,
    Comparison,
    Diagnosis,
    Resized,
    Timing,
    counted_calls,
    recommendation,
    times,
)
from nbcache.kernel.session import Session
from nbcache.torch_bridge import compile_options
from nbcache.ui.display import document as doc
from nbcache.ui.display.document import label_line, line
from nbcache.ui.display.render import Rendered, render
from nbcache.ui.ipython.compile_cell import unknown

if TYPE_CHECKING:
    from nbcache.torch_bridge.diagnosing import Call

_USAGE = "%nbcache diagnose CALL [--mode M] [--runs N] [--json], such as %nbcache diagnose model(x)"
_COLLECT = "__nbcache_arguments__"
_OPTION = r"--(?:(mode|runs)(?:\s+|=)([^\s=]+)|(json))"
_BEFORE, _AFTER = re.compile(rf"{_OPTION}(?:\s+|$)"), re.compile(rf"\s+{_OPTION}$")
_RESULTS = {
    Agreement.EQUAL: "equal",
    Agreement.USUAL: "as usual: within what torch.testing allows",
    Agreement.LARGER: "beyond what torch.testing allows, as another order of sums may give",
    Agreement.DIFFERENT: "different",
    Agreement.UNKNOWN: "not compared",
}


@dataclass(frozen=True, slots=True)
class Line:
    expression: str
    mode: str = "default"
    runs: int = 5
    as_json: bool = False


def run_line(text: str, session: Session, names: dict[str, Any]) -> tuple[Rendered, bool]:
    """Run a call eager and compiled; return the diagnosis, and whether the line asks for JSON."""
    __tracebackhide__ = True
    parsed = parse_line(text)
    tree = _call_in(parsed.expression)
    from nbcache.torch_bridge.diagnosing import diagnose  # which imports torch

    if problem := unknown("mode", parsed.mode, compile_options.known_modes()):
        raise _wrong(problem)
    call = _evaluate(tree, names)
    return render_diagnosis(diagnose(session, call, parsed.mode, parsed.runs)), parsed.as_json


def parse_line(text: str) -> Line:
    """Return the options, which are before or after the expression, and the unchanged expression."""
    text = text.strip().rstrip("; \t")
    options = {"mode": "default", "runs": "5"}
    while not isinstance(_tree(text), ast.Call) and (match := _BEFORE.match(text) or _AFTER.search(text)):
        options[match[1] or match[3]] = match[2]
        text = f"{text[: match.start()]}{text[match.end() :]}".strip()
    if not (runs := options["runs"]).isdecimal() or int(runs) < 1:
        raise _wrong(f"`--runs` takes a number, from 1 on, and no `{runs}`")
    return Line(text, options["mode"], int(runs), "json" in options)


def _tree(expression: str) -> ast.expr | None:
    try:
        return ast.parse(expression, mode="eval").body
    except (SyntaxError, ValueError):
        return None


def _call_in(expression: str) -> ast.Call:
    tree = _tree(expression)
    if not isinstance(tree, ast.Call):
        raise _wrong(f"`{one_line(expression, 60)}` is no call")
    if any(isinstance(node, ast.Call | ast.Await) for node in ast.walk(tree.func)):
        function = one_line(ast.unparse(tree.func), 60)
        raise _wrong(f"`{function}` computes the function that it calls: call a function around it instead")
    return tree


def _evaluate(tree: ast.Call, names: dict[str, Any]) -> Call:
    """Return the call with its function and arguments evaluated; their errors propagate."""
    __tracebackhide__ = True
    from nbcache.torch_bridge.diagnosing import Call

    text, name = one_line(ast.unparse(tree)), one_line(ast.unparse(tree.func))
    function = _value(tree.func, names, {})
    if isinstance(function, type):
        raise _wrong(f"`{name}` is a class: name a function, a method, or an instance that is a module")
    if not callable(function):
        raise _wrong(f"`{name}` cannot be called: it is a {type(function).__name__}")
    collecting = ast.Call(ast.Name(_COLLECT, ast.Load()), tree.args, tree.keywords)
    args, kwargs = _value(collecting, names, {_COLLECT: lambda *args, **kwargs: (args, kwargs)})
    return Call(text, name, function, args, kwargs)


def _value(tree: ast.expr, names: dict[str, Any], more: dict[str, Any]) -> Any:
    __tracebackhide__ = True
    expression = ast.fix_missing_locations(ast.copy_location(ast.Expression(tree), tree))
    return eval(compile(expression, "<nbcache diagnose>", "eval"), names, more)


def _wrong(problem: str) -> UsageError:
    return UsageError(f"%nbcache diagnose: {problem}. Usage: {_USAGE}")


def render_diagnosis(diagnosis: Diagnosis) -> Rendered:
    measurements = len((diagnosis.compiled or diagnosis.eager).seconds)
    parts = [one_line(diagnosis.expression, 60), diagnosis.device, counted(measurements, "measurement")]
    blocks: list[doc.Block] = [doc.Title("nbcache diagnose", parts), _table(diagnosis), *_findings(diagnosis)]
    blocks.append(label_line("next", recommendation(diagnosis)))
    return render(blocks, diagnosis.to_json(), "diagnosis")


def per_call(seconds: float) -> str:
    """Return the seconds of one call in words: `42 us`, `1.24 ms`, `31.2 ms`, `2.1 s`."""
    if seconds >= 0.9995:
        return duration(seconds)
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} us"
    digits = 2 if seconds < 9.995e-3 else 1 if seconds < 99.95e-3 else 0
    return f"{seconds * 1e3:.{digits}f} ms"


def _table(diagnosis: Diagnosis) -> doc.Table:
    titles = ["per call", "middle half", "speed-up", "compiling", "pays after"]
    peaks = [diagnosis.eager_peak_bytes, diagnosis.peak_bytes]
    rows = [["eager", *_seconds(diagnosis.eager)], [diagnosis.mode, "failed"]]
    if diagnosis.compiled is not None:
        calls = diagnosis.pays_after
        pays = NOTHING if calls is None else counted_calls(calls)
        cost = [times(diagnosis.speed_up or 0.0), duration(diagnosis.cold_seconds), pays]
        rows[1] = [diagnosis.mode, *_seconds(diagnosis.compiled), *cost]
    rows = [row + [NOTHING] * (len(titles) + 1 - len(row)) for row in rows]
    if diagnosis.eager_peak_bytes is not None:
        titles.append("GPU memory")
        rows = [
            [*row, NOTHING if peak is None else size(peak)] for row, peak in zip(rows, peaks, strict=True)
        ]
    return doc.Table([doc.Column(""), *(doc.Column(title, doc.Wrap.NUMBER) for title in titles)], rows)


def _seconds(timing: Timing) -> list[str]:
    low, high = timing.spread
    return [per_call(timing.median), f"{per_call(low)} to {per_call(high)}"]


def _findings(diagnosis: Diagnosis) -> Iterator[doc.Line]:
    breaks, recompiles = diagnosis.breaks, diagnosis.recompiles
    if diagnosis.compiled is None:
        yield label_line(f"{diagnosis.mode} failed", diagnosis.failure)
    else:
        yield label_line("graph breaks", f"{len(breaks) or 'none'} ({counted(diagnosis.graphs, 'graph')})")
        for graph_break in breaks:
            yield line(graph_break.reason, level=1)
            yield label_line("fix", graph_break.action, level=2)
        if recompiles:
            total = sum(recompile.times for recompile in recompiles)
            yield label_line("recompiles with the same arguments", str(total))
        for recompile in recompiles:
            end = "then no more" if recompile.settled else "and it goes on"
            text = f"{recompile.function}: {counted(recompile.times, 'time')}, {end}: {recompile.guard}"
            yield line(text, level=1)
            if not recompile.settled:
                yield label_line("fix", recompile.action, level=2)
        yield from _sizes(diagnosis)
        yield label_line("results", _results(diagnosis.comparison))
        if diagnosis.saved_seconds >= 0.1:
            spent = f"it took {duration(diagnosis.compile_seconds)} now"
            text = f"{spent}; the compile time in the table is that without stored graphs"
            yield label_line("from caches", text)
    yield from (label_line("note", note) for note in diagnosis.notes)


def _sizes(diagnosis: Diagnosis) -> Iterator[doc.Line]:
    if diagnosis.size is None:
        yield label_line("other sizes", "not tried: no argument is a tensor with a first dimension")
    elif calls := diagnosis.resized:
        accepted = len([call for call in calls if not call.refused])
        recompiled = len([call for call in calls if call.guards])
        text = f"{recompiled or 'none'} of {accepted} recompiled" if accepted else "refused, also eager"
        yield label_line(f"sizes other than {diagnosis.size}", text)
        for call in calls:
            yield line(f"{call.size}: {_resized_words(call)}", level=1)
            if call.action:
                yield label_line("fix", call.action, level=2)


def _resized_words(call: Resized) -> str:
    if call.refused:
        return f"refused, also eager: {call.refused}"
    if call.failure:
        return f"fails compiled: {call.failure}"
    if call.guards:
        return f"recompiled in {duration(call.seconds)}: {'; '.join(call.guards)}"
    return "runs as it is"


def _results(comparison: Comparison) -> str:
    detail = ": ".join(filter(None, (comparison.place, comparison.message)))
    return "; ".join(filter(None, (_RESULTS[comparison.agreement], detail)))
