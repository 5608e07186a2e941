"""The targets of `%%compile_cached`: a call of the compile hook after each statement that binds one.

`f = __nbcache_compile__("f", f)` is inserted

- right after a statement that binds `f` at the cell's top level: a definition, an assignment, an import; in
  top-level `if`, `for`, `while`, `with`, `try` and `match` blocks too, where it joins the innermost block;
- at the start of the block that a `for … in`, `with … as` or `case` binds it for;
- for a walrus, round the value, wherever it stands: `(f := __nbcache_compile__("f", value))`;
- at the start of the cell, if `f` exists already, unless the cell binds it anew before it mentions it;
- after `from … import *`, `exec` and IPython's `%` and `!` lines, which may bind it, if `f` exists then.

Bodies of functions, classes and lambdas do not count, nor does `except … as f`. A dotted target `a.b` is
bound by an assignment to `a.b`, or, if the cell has none, by a binding of `a`.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, MutableMapping
from itertools import accumulate
from typing import Any

from nbcache.ui.ipython.compile_cell import CompileOptions, marked, nearest, parse, usage_error

__all__ = [
    "HOOK",
    "TargetCompiler",
    "insert_compile_calls",
    "is_compilable",
    "never_bound",
    "not_callable",
]

HOOK = "__nbcache_compile__"
"""The name, in the user's namespace, of `compile_target(name, value)`, which returns the compiled value.

It is called with the name alone where nothing has bound it, and then raises `never_bound(name)`.
"""

_MISSING = object()
_ANYTHING = frozenset({"get_ipython", "exec"})
"""Functions that bind names which the source does not show; IPython's `%` and `!` lines call the first."""


def never_bound(target: str, names: Iterable[str] = ()) -> Exception:
    """Return the error for a target that neither exists nor is bound by the cell."""
    hint = nearest(target, (name for name in names if not name.startswith("_")))
    return usage_error(f"`{target}` does not exist, and the cell does not bind it at top level{hint}")


def not_callable(target: str, value: object) -> Exception:
    """Return the error for a target that cannot be compiled."""
    if isinstance(value, type):
        return usage_error(f"`{target}` is a class: name a function, or an instance that is a module")
    return usage_error(f"`{target}` cannot be called ({type(value).__name__}): name a function or a module")


def is_compilable(value: object) -> bool:
    """Return whether `value` is something to compile: callable, and no class."""
    return callable(value) and not isinstance(value, type)


class TargetCompiler(ast.NodeTransformer):
    """Inserts the compile calls into cells that `CellTransformer` marked; for `shell.ast_transformers`.

    `namespace` returns the user's namespace, where the hook is put whenever a cell needs it (`%reset` removes
    it). `on_cell` is called with the options of each marked cell, just before it runs; it may raise a
    `usage_error`, and nothing else, because IPython would unregister this transformer.
    """

    def __init__(
        self,
        namespace: Callable[[], MutableMapping[str, Any]],
        compile_target: Callable[..., Any],
        on_cell: Callable[[CompileOptions], None],
    ):
        self._namespace = namespace
        self._compile_target = compile_target
        self._on_cell = on_cell

    def visit_Module(self, tree: ast.Module) -> ast.Module:
        first = tree.body[0] if tree.body else None
        if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Constant):
            return tree
        arguments = marked(first.value.value)
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
    """Return the targets that can be compiled before the cell runs.

    Raises a `UsageError` for one that the cell does not bind and that does not exist or cannot be compiled.
    """
    bound = set(_all_bindings(tree.body))
    opaque = any(map(_has_opaque, tree.body))
    existing = set()
    for target in targets:
        name, *attributes = target.split(".")
        changes = opaque or any(f"{target}.".startswith(f"{path}.") for path in bound)
        try:
            value = functools.reduce(getattr, attributes, namespace[name]) if name in namespace else _MISSING
        except AttributeError:
            value = _MISSING
        except Exception:
            # A property of the user's raised: the call at the start of the cell will show it as theirs.
            if not changes:
                existing.add(target)
            continue
        if is_compilable(value):
            existing.add(target)
        elif changes:
            continue
        elif value is _MISSING:
            raise never_bound(target, namespace)
        else:
            raise not_callable(target, value)
    return existing


def insert_compile_calls(
    tree: ast.Module, targets: Iterable[str], existing: Container[str], hook: str = HOOK
) -> ast.Module:
    """Insert a call of `hook` wherever `tree` binds one of `targets`, and for `existing` ones at its start.

    Changes `tree` in place and returns it. A call has the location of the statement that it follows.
    """
    insertion = _Insertion(tree.body, tuple(targets), existing, hook)
    tree.body = insertion.cell(tree.body)
    return tree


class _Insertion:
    """Rewrites one cell's statements."""

    def __init__(self, body: list[ast.stmt], targets: tuple[str, ...], existing: Container[str], hook: str):
        bound = frozenset(_all_bindings(body))
        self._binders = {t: frozenset({t}) if t in bound else frozenset(_prefixes(t)) for t in targets}
        """By target, the paths whose binding binds it."""
        self._existing = existing
        self._unseen = [t for t in targets if t not in existing and not self._binders[t] & bound]
        """Targets that only a star import, `exec` or a magic can bind."""
        self._hook = hook

    def cell(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Return the rewritten statements of the whole cell."""
        head = max((i for i, stmt in enumerate(body) if _is_future(stmt)), default=-1) + 1
        line_1 = ast.Pass(lineno=1, col_offset=0, end_lineno=1, end_col_offset=0)
        first = [t for t in self._binders if t in self._existing and self._used_before_bound(body, t)]
        start = [self._statement(f"{t} = {self._hook}({t!r}, {t})", line_1) for t in first]
        last_opaque = max((i for i, stmt in enumerate(body) if _has_opaque(stmt)), default=-1)
        new: list[ast.stmt] = []
        for i, stmt in enumerate(body):
            new += self._block([stmt])
            if i == last_opaque:
                new += [self._missing(target, stmt) for target in self._unseen]
        return [*new[:head], *start, *new[head:]]

    def _block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        new: list[ast.stmt] = []
        for stmt in body:
            opaque = _is_opaque(stmt)
            walruses = list(_walruses(stmt))
            blocks = list(_blocks(stmt))
            for block, paths, at in blocks:
                block[:] = self._calls(paths, at) + self._block(block)
            for walrus in walruses:
                if walrus.target.id in self._binders:
                    walrus.value = self._wrapped(walrus)
            new.append(stmt)
            new += self._calls(_bindings(stmt), stmt)
            if not blocks:
                new += self._calls([walrus.target.id for walrus in walruses], stmt, dotted=True)
            if opaque:
                new += [self._guarded(t, stmt) for t, paths in self._binders.items() if _root(t) in paths]
        return new

    def _used_before_bound(self, body: list[ast.stmt], target: str) -> bool:
        """Return whether the value that `target` has at the start can still be the one that is used."""
        name = _root(target)
        for stmt in body:
            if self._binders[target].intersection(_bindings(stmt)):
                return False
            if any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(stmt)):
                return True
        return True

    def _calls(self, paths: Iterable[str], at: ast.AST, *, dotted: bool = False) -> list[ast.stmt]:
        """Return the calls for the targets that binding `paths` binds; with `dotted`, for the dotted ones."""
        bound = set(paths)
        return [
            self._statement(f"{target} = {self._hook}({target!r}, {target})", at)
            for target, binders in self._binders.items()
            if binders & bound and not (dotted and "." not in target)
        ]

    def _wrapped(self, walrus: ast.NamedExpr) -> ast.expr:
        call = ast.Call(ast.Name(self._hook, ast.Load()), [ast.Constant(walrus.target.id), walrus.value], [])
        return ast.fix_missing_locations(ast.copy_location(call, walrus.value))

    def _guarded(self, target: str, at: ast.AST) -> ast.stmt:
        call = f"{target} = {self._hook}({target!r}, {target})"
        return self._statement(f"if {_root(target)!r} in locals(): {call}", at)

    def _missing(self, target: str, at: ast.AST) -> ast.stmt:
        return self._statement(f"if {_root(target)!r} not in locals(): {self._hook}({target!r})", at)

    def _statement(self, source: str, at: ast.AST) -> ast.stmt:
        stmt = ast.parse(source).body[0]
        for node in ast.walk(stmt):
            ast.copy_location(node, at)
        return stmt


def _root(path: str) -> str:
    return path.partition(".")[0]


def _prefixes(path: str) -> Iterator[str]:
    """Yield `a`, `a.b` and `a.b.c` for `a.b.c`."""
    return accumulate(path.split("."), "{}.{}".format)


def _is_future(stmt: ast.stmt) -> bool:
    return isinstance(stmt, ast.ImportFrom) and stmt.module == "__future__"


def _blocks(stmt: ast.stmt) -> Iterator[tuple[list[ast.stmt], list[str], ast.AST]]:
    """Yield a compound statement's blocks: each with the paths bound at its start, and where they stand."""
    match stmt:
        case ast.If() | ast.While():
            yield stmt.body, [], stmt
            yield stmt.orelse, [], stmt
        case ast.For() | ast.AsyncFor():
            yield stmt.body, _paths(stmt.target), stmt.target
            yield stmt.orelse, [], stmt
        case ast.With() | ast.AsyncWith():
            bound = [path for item in stmt.items if item.optional_vars for path in _paths(item.optional_vars)]
            yield stmt.body, bound, stmt.items[0].context_expr
        case ast.Try() | ast.TryStar():
            handlers = [handler.body for handler in stmt.handlers]
            for block in (stmt.body, *handlers, stmt.orelse, stmt.finalbody):
                yield block, [], stmt
        case ast.Match():
            for case in stmt.cases:
                yield case.body, list(_captures(case.pattern)), case.pattern


def _bindings(stmt: ast.stmt) -> list[str]:
    """Return the paths that `stmt` has bound once it is done, but for walruses and nested blocks."""
    match stmt:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [path for target in targets for path in _paths(target)]
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target, value=ast.expr()):
            return _paths(target)
        case ast.Import(names=names):
            return [alias.asname or _root(alias.name) for alias in names]
        case ast.ImportFrom(names=names):
            return [alias.asname or alias.name for alias in names]
    return []


def _paths(target: ast.expr) -> list[str]:
    """Return the names and dotted paths that an assignment to `target` binds."""
    match target:
        case ast.Name(id=name):
            return [name]
        case ast.Attribute(value=ast.Name() | ast.Attribute() as value, attr=attribute):
            return [f"{path}.{attribute}" for path in _paths(value)]
        case ast.Starred(value=value):
            return _paths(value)
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return [path for element in elements for path in _paths(element)]
    return []


def _captures(pattern: ast.pattern) -> Iterator[str]:
    for node in ast.walk(pattern):
        name = node.rest if isinstance(node, ast.MatchMapping) else getattr(node, "name", None)
        if name is not None:
            yield name


def _walruses(node: ast.AST) -> Iterator[ast.NamedExpr]:
    """Yield the walruses in the expressions of `node` that bind in its own scope."""
    for child in ast.iter_child_nodes(node.args if isinstance(node, ast.Lambda) else node):
        if isinstance(child, ast.NamedExpr):
            yield child
        if not isinstance(child, ast.stmt):
            yield from _walruses(child)


def _all_bindings(body: Iterable[ast.stmt]) -> Iterator[str]:
    for stmt in body:
        yield from _bindings(stmt)
        yield from (walrus.target.id for walrus in _walruses(stmt))
        for block, paths, _ in _blocks(stmt):
            yield from paths
            yield from _all_bindings(block)


def _is_opaque(stmt: ast.stmt) -> bool:
    """Return whether `stmt` may bind names it does not show: `import *`, `exec`, IPython's `%` and `!`."""
    if isinstance(stmt, ast.ImportFrom):
        return stmt.names[0].name == "*"
    if not isinstance(stmt, ast.Expr | ast.Assign | ast.AugAssign | ast.AnnAssign):
        return False
    calls = (node.func for node in ast.walk(stmt) if isinstance(node, ast.Call))
    return any(isinstance(function, ast.Name) and function.id in _ANYTHING for function in calls)


def _has_opaque(stmt: ast.stmt) -> bool:
    return _is_opaque(stmt) or any(_has_opaque(inner) for block, _, _ in _blocks(stmt) for inner in block)
