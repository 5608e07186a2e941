"""`%%compile_cached`: the options of its line, their completion, and the calls that compile its targets.

The magic runs no nested cell. `CellTransformer`, the last of IPython's cleanup transforms, replaces the line
by a string literal, and leaves everything else where it was:

    %%compile_cached f --mode max-autotune          'nbcache: %%compile_cached f --mode max-autotune'
    y = await g(f(x))                               y = await g(f(x))

so that line numbers, top-level `await`, the last expression's display and errors are IPython's own.
`TargetCompiler` finds the literal in the syntax tree just before that tree runs, and removes it. Only the
literal carries the options. So no cell gets another cell's options, even if a source is transformed and never
runs, or with a nested `run_cell`, a macro, or `%%time` above the line.

`f = __nbcache_compile__("f", f)` is inserted

- after a statement that binds `f` at the cell's top level, or in a block of it: a definition, an assignment,
  an import;
- at the start of the cell, if `f` exists already, unless the cell binds it before it mentions it;
- after `from … import *`, `exec` and IPython's `%` and `!` lines, which may bind `f`, if it exists then.

Bindings in bodies of functions, classes and lambdas are ignored. A dotted target `a.b` is bound by an
assignment to `a.b`, or, if the cell has none, by a binding of `a`.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import functools
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from itertools import accumulate
from keyword import iskeyword
from typing import Any, NoReturn, TypeAlias

from IPython.core.error import InputRejected, UsageError

from nbcache.torch_bridge import compile_options

MAGIC = "%%compile_cached"
HOOK = "__nbcache_compile__"
"""The name, in the user's namespace, of `compile_target(name, value)`, which returns the compiled value."""
_MARK = "nbcache: "
USAGE = (
    f"{MAGIC} [TARGET …] [--mode M] [--fullgraph] [--dynamic / --no-dynamic] [--backend B] [--options K=V …]"
    " [--device D] [--name N] [--require-hit] [--no-save] [--quiet]"
)
_TARGETS = (
    "functions or modules to compile with these arguments: one that the cell binds at top level, "
    "right after the statement that binds it; one that exists already, before the cell starts"
)
_EXAMPLE = """Example:

  %%compile_cached model --mode max-autotune
  model = Net().eval()
  y = model(x)        # compiled, or from a cache
  y.mean()            # shown as in any cell
"""

OptionValue: TypeAlias = bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """The options of one `%%compile_cached` line."""

    targets: tuple[str, ...] = ()
    """Names, or dotted paths of attributes."""
    mode: str | None = None
    fullgraph: bool = False
    dynamic: bool | None = None
    """None leaves it to torch, which compiles for dynamic shapes once a size has changed."""
    backend: str | None = None
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    device: str | None = None
    name: str | None = None
    require_hit: bool = False
    save: bool = True
    quiet: bool = False

    def torch_arguments(self) -> dict[str, Any]:
        """Return the arguments of `torch.compile` that the line sets."""
        names = ("mode", "fullgraph", "dynamic", "backend", "options")
        arguments = {name: getattr(self, name) for name in names}
        arguments["options"] = dict(self.options)  # a copy: torch removes entries from it
        return {
            name: value for name, value in arguments.items() if value or (name, value) == ("dynamic", False)
        }


class _CellUsageError(InputRejected, UsageError):
    """A `UsageError` that IPython's AST stage lets through, and that becomes an `error` output.

    IPython writes a plain `UsageError` to stderr only, so papermill, which looks for `error` outputs, would
    pass the notebook. IPython unregisters an AST transformer that raises anything but `InputRejected`, and
    still runs the cell.
    """

    def _render_traceback_(self) -> list[str]:
        return [f"UsageError: {self}"]


_CellUsageError.__name__ = _CellUsageError.__qualname__ = "UsageError"


def usage_error(problem: str, *, show_usage: bool = False) -> Exception:
    """Return the `UsageError` to raise. IPython shows it as one line, and the cell fails."""
    usage = f"{'' if problem.endswith('?') else '.'} Usage: {USAGE}" if show_usage else ""
    return _CellUsageError(f"{MAGIC}: {problem}{usage}")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise usage_error(message, show_usage=True)


def _target(word: str) -> str:
    if not all(part.isidentifier() and not iskeyword(part) for part in word.split(".")):
        raise argparse.ArgumentTypeError(f"`{word}` is not the name of a function or module")
    return word


def _pair(word: str) -> tuple[str, OptionValue]:
    """Parse one K=V; V is a number, True, False, None, or otherwise text."""
    key, equals, text = word.partition("=")
    if not equals or not re.fullmatch(r"\w[\w.-]*", key):
        raise argparse.ArgumentTypeError(
            f"`{word}` is not of the form KEY=VALUE; names of what to compile go before the options"
        )
    try:
        value = ast.literal_eval(text.capitalize() if text in ("true", "false") else text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        value = text
    return key, value if isinstance(value, OptionValue) else text


_SWITCH, _OFF = {"action": "store_true"}, {"action": "store_false"}
_PAIRS = {"metavar": "K=V", "nargs": "+", "action": "extend", "type": _pair, "default": []}
_OPTIONS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "--mode": ("torch.compile's mode: default, reduce-overhead, max-autotune, …", {"metavar": "M"}),
    "--fullgraph": ("raise an error at a graph break", _SWITCH),
    "--dynamic": ("compile for dynamic shapes from the start", _SWITCH | {"default": None}),
    "--no-dynamic": ("never do so; with neither, torch decides", _OFF | {"dest": "dynamic"}),
    "--backend": ("torch.compile's backend; inductor unless given", {"metavar": "B"}),
    "--options": ("options for the backend, as `max_autotune=True triton.cudagraphs=False`", _PAIRS),
    "--device": ("torch's default device while the cell runs: cpu, cuda, cuda:1, …", {"metavar": "D"}),
    "--name": ("name of this cell in the report", {"metavar": "N"}),
    "--require-hit": ("fail the cell if it compiled anything that no cache had", _SWITCH),
    "--no-save": ("store no graph of this cell", _OFF | {"dest": "save"}),
    "--quiet": ("show no report, unless something went wrong", _SWITCH),
}


_PARSER = _Parser(
    usage=USAGE.replace("%", "%%"),
    description="Run the cell with nbcache's stored graphs, and report for each graph whether it hit.",
    epilog=_EXAMPLE,
    formatter_class=functools.partial(argparse.RawDescriptionHelpFormatter, width=100),
    add_help=False,
    allow_abbrev=False,
)
_PARSER.add_argument("targets", nargs="*", metavar="TARGET …", type=_target, help=_TARGETS)
for _name, (_help, _settings) in _OPTIONS.items():
    _PARSER.add_argument(_name, help=_help, **_settings)
HELP = _PARSER.format_help().removeprefix("usage: ")
"""The magic's docstring, which `%%compile_cached?` shows."""


def parse(line: str) -> CompileOptions:
    """Return the options on `line`, the text after `%%compile_cached`; UsageError for anything else."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise usage_error(str(error), show_usage=True) from None
    arguments, unknowns = _PARSER.parse_known_intermixed_args(words)
    if unknowns:
        name = unknowns[0].partition("=")[0]
        raise usage_error(f"unknown option `{name}`{did_you_mean(name, _OPTIONS)}", show_usage=True)
    if arguments.mode is not None and arguments.options:
        raise usage_error("`--mode` and `--options` exclude each other", show_usage=True)
    targets, options = tuple(arguments.targets), dict(arguments.options)
    return CompileOptions(**vars(arguments) | {"targets": targets, "options": options})


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return `; did you mean …?` with the names that are like `word`, or an empty string."""
    matches = difflib.get_close_matches(word, list(names), n=3)
    return f"; did you mean {', '.join(f'`{match}`' for match in matches)}?" if matches else ""


def unknown(kind: str, name: str, names: Collection[str]) -> str:
    """Return the problem with a name that torch lacks; empty for a name that it has."""
    if name in names:
        return ""
    listed = f" (torch has {', '.join(names)})" if len(names) <= 8 else ""
    return f"unknown {kind} `{name}`{listed}{did_you_mean(name, names)}"


def check(options: CompileOptions) -> None:
    """Raise a UsageError for a backend, or a mode or option of inductor, that torch lacks."""
    problems = []
    if options.backend is not None:
        problems.append(unknown("backend", options.backend, compile_options.known_backends()))
    if options.backend in (None, "inductor"):
        if options.mode is not None:
            problems.append(unknown("mode", options.mode, compile_options.known_modes()))
        if options.options:
            names = [*compile_options.known_options(), "use_aoti"]  # torch omits it from the list
            problems += [unknown("option", key.replace("-", "_"), names) for key in options.options]
    for problem in filter(None, problems):
        raise usage_error(problem)


def _arguments(line: str) -> str | None:
    """Return the text after the magic's name on `line`; None for other lines, and for the help `…?`."""
    match = re.fullmatch(rf"{MAGIC}(?:\s+(.*))?", line.rstrip())
    return None if match is None else match[1] or ""


class CellTransformer:
    """Replaces a cell's `%%compile_cached` line, as the last of the shell's `input_transformers_cleanup`.

    It is last because IPython's own cleanup removes blank first lines, common indentation and prompts; its
    `cell_magic` runs later. Raises a `UsageError` if the line is wrong or the cell is empty below it.
    """

    has_side_effects = True
    """Excludes it from `check_complete`, which then treats the cell as a cell magic. There, a `UsageError`
    would reach the terminal's prompt."""

    def __call__(self, lines: list[str]) -> list[str]:
        """Replace the magic's line by a text, which marks the cell's first statement for `TargetCompiler`."""
        arguments = _arguments(lines[0]) if lines else None
        if arguments is None:
            return lines
        body = next((line for line in lines[1:] if line.strip()), None)
        if body is None:
            raise usage_error("the cell is empty: put the code to run below this line", show_usage=True)
        if body.startswith("%%"):
            raise usage_error(f"`{body.split()[0]}` goes above this line, not below it", show_usage=True)
        parse(arguments)  # raises for a wrong line
        return [f"{_MARK + lines[0].rstrip()!r}\n", *lines[1:]]


def complete(line: str, symbol: str, names: Callable[[], Iterable[str]]) -> list[str]:
    """Return the completions of `symbol`, at the end of `line`; `names` returns the targets to offer."""
    preceding = line.removesuffix(symbol)
    words = preceding.replace("=", "= ").split()
    option = next((word for word in reversed(words) if word.startswith("--")), "")
    match words[-1].rstrip("="):
        case "--mode":
            candidates = compile_options.known_modes()
        case "--backend":
            candidates = compile_options.known_backends()
        case "--device":
            candidates = ["cpu", "cuda", "mps", "xpu"]
        case "--name":
            candidates = []
        case _ if preceding.endswith("="):
            candidates = ["True", "False", "None"]
        case _ if option == "--options":
            candidates = [*(f"{name}=" for name in compile_options.known_options()), *_OPTIONS]
        case _:
            candidates = [*names(), *_OPTIONS]
    return [candidate for candidate in candidates if candidate.startswith(symbol)]


def is_compilable(value: object) -> bool:
    """Return whether `value` can be compiled: it is callable, and no class."""
    return callable(value) and not isinstance(value, type)


def check_callable(target: str, value: object) -> None:
    """Raise a `UsageError` for a target that cannot be compiled."""
    if isinstance(value, type):
        raise usage_error(f"`{target}` is a class: name a function, or an instance that is a module")
    if not callable(value):
        kind = type(value).__name__
        raise usage_error(f"`{target}` cannot be called ({kind}): name a function or a module")


class TargetCompiler(ast.NodeTransformer):
    """Inserts the compile calls into cells that `CellTransformer` marked; for `shell.ast_transformers`.

    `namespace` returns the user's namespace. Each cell that needs the hook puts it there, as `%reset` removes
    it. `on_cell` gets the options of each marked cell just before it runs. It may raise only a `usage_error`:
    after any other error, IPython unregisters this transformer.
    """

    def __init__(
        self,
        namespace: Callable[[], MutableMapping[str, Any]],
        compile_target: Callable[[str, Any], Any],
        on_cell: Callable[[CompileOptions], None],
    ):
        self._namespace = namespace
        self._compile_target = compile_target
        self._on_cell = on_cell

    def visit_Module(self, tree: ast.Module) -> ast.Module:
        match tree.body:
            case [ast.Expr(value=ast.Constant(value=str(literal))), *_] if literal.startswith(_MARK):
                arguments = _arguments(literal.removeprefix(_MARK))
            case _:
                return tree
        if arguments is None:
            return tree
        options = parse(arguments)
        namespace = self._namespace()
        existing = _existing(tree, options.targets, namespace)
        self._on_cell(options)
        del tree.body[0]
        if options.targets:
            namespace[HOOK] = self._compile_target
            insert_compile_calls(tree, options.targets, existing)
        return tree


def _existing(tree: ast.Module, targets: Iterable[str], namespace: Mapping[str, Any]) -> set[str]:
    """Return the targets that can be compiled before the cell runs; UsageError for unusable ones."""
    bound = set(_all_bindings(tree.body))
    opaque = any(_is_opaque(stmt) for stmt in ast.walk(tree) if isinstance(stmt, ast.stmt))
    existing = set()
    for target in targets:
        name, *attributes = target.split(".")
        binds = opaque or any(f"{target}.".startswith(f"{path}.") for path in bound)
        try:
            value = functools.reduce(getattr, attributes, namespace[name])
        except Exception as error:  # it does not exist, or the user's property raised
            if not binds:
                hint = did_you_mean(target, (defined for defined in namespace if not defined.startswith("_")))
                problem = f"`{target}` does not exist, and the cell does not bind it at top level{hint}"
                raise usage_error(problem) from error
            continue
        if not binds:
            check_callable(target, value)
        if is_compilable(value):
            existing.add(target)
    return existing


def insert_compile_calls(tree: ast.Module, targets: Iterable[str], existing: Collection[str]) -> None:
    """Insert a call of `HOOK` after each statement that binds a target, and at the start for `existing`."""
    bound = frozenset(_all_bindings(tree.body))
    bindings_of = {
        target: {target} if target in bound else {*accumulate(target.split("."), "{}.{}".format)}
        for target in targets
    }
    """Target → the paths that bind it: only `a.b` if the cell binds that, otherwise `a` and `a.b`."""

    def statement(source: str, at: ast.AST) -> ast.stmt:
        stmt = ast.parse(source).body[0]
        for node in ast.walk(stmt):
            ast.copy_location(node, at)
        return stmt

    def call(target: str) -> str:
        return f"{target} = {HOOK}({target!r}, {target})"

    def block(body: list[ast.stmt]) -> list[ast.stmt]:
        new: list[ast.stmt] = []
        for stmt in body:
            for inner in _blocks(stmt):
                inner[:] = block(inner)
            names = set(_bindings(stmt))
            new += [
                stmt,
                *(statement(call(name), stmt) for name, paths in bindings_of.items() if paths & names),
            ]
            if _is_opaque(stmt):
                new += [
                    statement(f"if {_root(name)!r} in locals(): {call(name)}", stmt) for name in bindings_of
                ]
        return new

    def is_used_before_bound(target: str) -> bool:
        """Return whether the cell, or code that it calls, can use the value of `target` at the start."""
        for stmt in tree.body:
            if bindings_of[target].intersection(_bindings(stmt)):
                return False
            if any(isinstance(node, ast.Name) and node.id == _root(target) for node in ast.walk(stmt)):
                return True
        return True

    line_1 = ast.Pass(lineno=1, col_offset=0, end_lineno=1, end_col_offset=0)
    used = [target for target in bindings_of if target in existing and is_used_before_bound(target)]
    future = [stmt for stmt in tree.body if isinstance(stmt, ast.ImportFrom) and stmt.module == "__future__"]
    head = 1 + tree.body.index(future[-1]) if future else 0
    first = [statement(call(target), line_1) for target in used]
    tree.body = [*tree.body[:head], *first, *block(tree.body[head:])]


def _root(path: str) -> str:
    return path.partition(".")[0]


def _blocks(stmt: ast.stmt) -> Iterator[list[ast.stmt]]:
    if not isinstance(stmt, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        for part in (stmt, *getattr(stmt, "handlers", ()), *getattr(stmt, "cases", ())):
            for name in ("body", "orelse", "finalbody"):
                if isinstance(inner := getattr(part, name, None), list):
                    yield inner


def _bindings(stmt: ast.stmt) -> list[str]:
    """Return the paths that `stmt` binds outside its nested blocks."""
    match stmt:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return _paths(*targets)
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target, value=ast.expr()):
            return _paths(target)
        case ast.Import(names=names):
            return [alias.asname or _root(alias.name) for alias in names]
        case ast.ImportFrom(names=names):
            return [alias.asname or alias.name for alias in names]
    return []


def _paths(*targets: ast.expr) -> list[str]:
    """Return the names and dotted paths that an assignment to `targets` binds."""
    nodes = (node for target in targets for node in ast.walk(target))
    return [ast.unparse(node) for node in nodes if isinstance(getattr(node, "ctx", None), ast.Store)]


def _all_bindings(body: Iterable[ast.stmt]) -> Iterator[str]:
    for stmt in body:
        yield from _bindings(stmt)
        for block in _blocks(stmt):
            yield from _all_bindings(block)


def _is_opaque(stmt: ast.stmt) -> bool:
    """Return whether `stmt` may bind hidden names: `import *`, `exec`, IPython's `%` and `!`."""
    if isinstance(stmt, ast.ImportFrom):
        return stmt.names[0].name == "*"
    if not isinstance(stmt, ast.Expr | ast.Assign):
        return False
    calls = (node.func for node in ast.walk(stmt) if isinstance(node, ast.Call))
    return any(isinstance(call, ast.Name) and call.id in ("get_ipython", "exec") for call in calls)
