"""`%nbcache diagnose CALL`: reads the line, evaluates the call up to itself, and returns the result."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Any

from IPython.core.error import UsageError

from nbcache.core.text import one_line
from nbcache.kernel.session import Session
from nbcache.torch_bridge import compile_options
from nbcache.torch_bridge.diagnosing import Call, diagnose
from nbcache.ui.display.diagnosis import render_diagnosis
from nbcache.ui.display.render import Rendered
from nbcache.ui.ipython.compile_cell import unknown

_USAGE = "%nbcache diagnose CALL [--mode M] [--runs N] [--json], such as %nbcache diagnose model(x)"
_COLLECT = "__nbcache_arguments__"
_OPTION = r"--(?:(mode|runs)(?:\s+|=)([^\s=]+)|(json))"
_BEFORE, _AFTER = re.compile(rf"{_OPTION}(?:\s+|$)"), re.compile(rf"\s+{_OPTION}$")


@dataclass(frozen=True, slots=True)
class Line:
    expression: str
    mode: str = "default"
    runs: int = 5
    as_json: bool = False


def diagnosed(text: str, session: Session, names: dict[str, Any]) -> tuple[Rendered, bool]:
    """Run a call eager and compiled; return what to do, and whether the line asks for JSON."""
    __tracebackhide__ = True
    line = parse_line(text)
    tree = _call_in(line.expression)
    if problem := unknown("mode", line.mode, compile_options.known_modes()):
        raise _wrong(problem)
    call = _evaluate(tree, names)
    return render_diagnosis(diagnose(session, call, line.mode, line.runs)), line.as_json


def parse_line(line: str) -> Line:
    """Return the options, which stand before or after the expression, and the expression as it is written."""
    text = line.strip().rstrip("; \t")
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
        raise _wrong(
            f"`{function}` computes what it calls: put all of it into a function, and call that here"
        )
    return tree


def _evaluate(tree: ast.Call, names: dict[str, Any]) -> Call:
    """Return the call with its function and arguments evaluated; errors in them pass."""
    __tracebackhide__ = True
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
