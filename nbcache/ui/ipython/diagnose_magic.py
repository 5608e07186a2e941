"""`%nbcache diagnose EXPR`: reads the line, evaluates the call up to itself, and shows what came of it."""

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
from nbcache.ui.ipython.compile_cell import nearest
from nbcache.ui.ipython.session_magics import show

__all__ = ["DiagnoseMagic", "Line", "parsed"]

_USAGE = "%nbcache diagnose EXPR [--modes M,…] [--runs N] [--json], such as %nbcache diagnose model(x)"
_RUNS = 20
_COLLECT = "__nbcache_arguments__"
_VALUED = r"--(?P<name>modes|runs)(?:\s+|=)(?P<value>[^\s=]+)"
_OPTION = rf"(?:{_VALUED}|--(?P<flag>json))"
_AT_END = re.compile(rf"\s+{_OPTION}$")
_AT_BEGIN = re.compile(rf"{_OPTION}(?:\s+|$)")
_LOOKS_LIKE_ONE = re.compile(r"(?:^|\s)(--[a-z][\w-]*)")


@dataclass(frozen=True, slots=True)
class Line:
    """What follows `%nbcache diagnose`."""

    expression: str
    modes: tuple[str, ...] = ("default",)
    runs: int = _RUNS
    as_json: bool = False


class DiagnoseMagic:
    """The verb, for one shell."""

    def __init__(self, shell: Any, session: Session) -> None:
        self._shell = shell
        self._session = session

    def diagnose(self, line: str) -> None:
        """Run an expression eager and compiled, and say what to do."""
        __tracebackhide__ = True
        asked = parsed(line)
        tree = _call_in(asked.expression)
        _check_modes(asked.modes)
        call = _evaluated(tree, self._shell.user_ns)
        found = diagnose(self._session, call, asked.modes, asked.runs)
        show(render_diagnosis(found), asked.as_json)


def parsed(line: str) -> Line:
    """Return the options, which stand before or after the expression, and the expression as it is written."""
    rest = line.strip().rstrip("; \t")
    given: dict[str, str] = {}
    while not _is_call(rest) and (match := _AT_END.search(rest) or _AT_BEGIN.match(rest)):
        name = match["name"] or match["flag"]
        if name in given:
            raise _wrong(f"`--{name}` is given twice")
        given[name] = match["value"] or ""
        rest = (rest[: match.start()] + rest[match.end() :]).strip()
    modes = tuple(dict.fromkeys(each for each in given.get("modes", "default").split(",") if each))
    runs = given.get("runs", str(_RUNS))
    if not runs.isdecimal() or int(runs) < 1:
        raise _wrong(f"`--runs` takes a number of calls, from 1 on, and no `{runs}`")
    if not rest:
        raise _wrong("there is no expression")
    return Line(rest, modes or ("default",), int(runs), "json" in given)


def _is_call(text: str) -> bool:
    """Tell whether it is one call of Python, whatever stands in its strings."""
    try:
        return isinstance(ast.parse(text, mode="eval").body, ast.Call)
    except (SyntaxError, ValueError):
        return False


def _call_in(expression: str) -> ast.Call:
    """Return the syntax tree of an expression that is one call."""
    try:
        tree = ast.parse(expression, mode="eval").body
    except SyntaxError as error:
        _check_options(expression)
        raise _wrong(f"`{one_line(expression, 60)}` is no expression of Python: {error.msg}") from None
    if isinstance(tree, ast.Await):
        raise _wrong(f"`{one_line(expression, 60)}` is awaited: call the function that the coroutine calls")
    if not isinstance(tree, ast.Call):
        _check_options(expression)
        raise _wrong(f"`{one_line(expression, 60)}` is no call: write one, such as model(x)")
    if any(isinstance(each, ast.Call | ast.Await) for each in ast.walk(tree.func)):
        called = one_line(ast.unparse(tree.func), 60)
        raise _wrong(f"`{called}` computes what it calls: put all of it into a function, and call that here")
    return tree


def _check_options(expression: str) -> None:
    """Say what is wrong with what looks like an option and is none."""
    if match := _LOOKS_LIKE_ONE.search(expression):
        known = ["--modes", "--runs", "--json"]
        if match[1] in known:
            raise _wrong(f"`{match[1]}` needs a value" if match[1] != "--json" else "`--json` is given twice")
        raise _wrong(f"unknown option `{match[1]}`{nearest(match[1], known)}")


def _check_modes(modes: tuple[str, ...]) -> None:
    known = compile_options.known_modes()
    for mode in modes:
        if mode not in known:
            told = f"unknown mode `{mode}` (torch has {', '.join(known)})"
            raise _wrong(told + nearest(mode, known))


def _evaluated(tree: ast.Call, names: dict[str, Any]) -> Call:
    """Return the call with its function and arguments evaluated; errors of theirs pass."""
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
    whole = ast.fix_missing_locations(ast.copy_location(ast.Expression(tree), tree))
    return eval(compile(whole, "<nbcache diagnose>", "eval"), names, more)


def _wrong(problem: str) -> UsageError:
    return UsageError(f"%nbcache diagnose: {problem}. Usage: {_USAGE}")
