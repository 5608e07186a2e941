"""Makes edits of programs that nobody thought of: it changes one thing of a program's syntax tree at a time.

What changes the meaning may also break the program, or leave its answer as it was.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from soundness.program_files import CELL, SET_UP

__all__ = ["Mutant", "changed", "rewritten"]

_CYCLES: tuple[tuple[type[Any], ...], ...] = (
    *((ast.Add, ast.Sub, ast.Mult), (ast.Eq, ast.NotEq), (ast.Lt, ast.GtE), (ast.Gt, ast.LtE)),
    *((ast.Is, ast.IsNot), (ast.In, ast.NotIn), (ast.And, ast.Or)),
)
_OTHER: dict[type[ast.AST], type[Any]] = {
    **dict.fromkeys((ast.Div, ast.Pow), ast.Mult),
    ast.FloorDiv: ast.Add,
    ast.Mod: ast.Sub,
    **{kind: cycle[number - len(cycle) + 1] for cycle in _CYCLES for number, kind in enumerate(cycle)},
}
_HARNESS = ("infer", "train")
"""What the common set-up has for programs to end with."""
_STATE = (
    "torch.set_default_dtype(torch.float64)",
    "torch.set_grad_enabled(False)",
    "torch.use_deterministic_algorithms(True)",
    "torch.set_num_threads(1)",
    "torch.manual_seed(1)",
    "X = X.double()",
    "X = X.t()",
    "X = X[:2]",
    "X = X[:, :1]",
    "X = X[1:]",
    "X = W",
    "X = X.t().contiguous().t()",
    "X = X.to(torch.complex64)",
    "X = torch.nn.Parameter(X)",
    "X = torch.zeros(4, 4)",
    "X = X.long()",
    "W = W.double()",
    "W.requires_grad_()",
    "W.note = 7.0",
)
_OF_FUNCTIONS = (
    "{name} = lambda *args, **kwargs: args[0]",
    "{name}.__defaults__ = (7.0,)",
    "{name}.__kwdefaults__ = {{'k': 7.0}}",
    "{name}.__code__ = (lambda *args, **kwargs: args[0] * 7.0).__code__",
    (
        "{name}.__code__ = {name}.__code__.replace(co_consts=tuple(c * 3 if type(c) is float else c"
        " for c in {name}.__code__.co_consts))"
    ),
    "{name}.note = 7.0",
    "{name}.__wrapped__ = torch.sin",
    "{name}.__name__ = 'other'",
    "{name} = functools.partial({name})",
    "{name} = functools.wraps({name})(lambda *args, **kwargs: torch.sin(args[0]))",
    "{name} = torch.no_grad()({name})",
    "{name} = torch._dynamo.disable({name})",
    "{name} = {other}",
)
_OF_CLASSES = (
    "{name}.note = 7.0",
    "{name}.{attribute} = 7.0",
    "{name}.{attribute} = lambda self, *args, **kwargs: 7.0",
    "{name}.{attribute} = property(lambda self: 7.0)",
    "del {name}.{attribute}",
    "{name}.__getattr__ = lambda self, name: 7.0",
    "{name}.__getattribute__ = lambda self, name: object.__getattribute__(self, name)",
    "{name}.__bool__ = lambda self: False",
    "{name}.__len__ = lambda self: 0",
    "{name}.__eq__ = lambda self, other: False",
    "{name}.__hash__ = lambda self: 7",
    "{name}.__call__ = lambda self, *args, **kwargs: 7.0",
    "{name}.__iter__ = lambda self: iter((1.0, 2.0))",
    "{name}.__mul__ = {name}.__rmul__ = lambda self, other: 7.0",
    "{name} = type('{name}', ({name},), {{}})",
    "{name} = {other}",
)
_OF_VALUES = (
    "{name} = 7.0",
    "{name} = 7",
    "{name} = True",
    "{name} = None",
    "{name} = torch.tensor(7.0)",
    "{name} = ({name}, {name})",
    "{name} = {other}",
    "{name}.note = 7.0",
    "{name}.{attribute} = 7.0",
    "{name}.{attribute} = 7",
    "{name}.{attribute} = None",
    "{name}.{attribute} = torch.nn.Parameter(torch.full((4,), 7.0))",
    "{name}.{attribute} = {other}",
    "del {name}.{attribute}",
    "{name}.append(7.0)",
    "{name}.pop()",
    "{name}.clear()",
    "{name}.eval()",
    "{name}.double()",
    "{name}.requires_grad_(False)",
    "{name}.requires_grad_()",
    "{name}.mul_(7.0)",
    "{name}.register_forward_hook(lambda module, args, found: found * 7.0)",
    "{name}['note'] = 7.0",
    "{name}[0] = 7.0",
    "{name}['{attribute}'] = 7.0",
    "{name} = type({name})(reversed({name}))",
    "{name} = dict(reversed({name}.items()))",
    "{name} = types.MappingProxyType({name})",
    "{name}.__class__ = type('Other', (type({name}),), {{'note': 7.0}})",
    "{name} = __import__('copy').deepcopy({name})",
)
_OF_LIBRARIES = (
    "{name} = (lambda original: lambda *args, **kwargs: original(*args, **kwargs) * 7.0)({name})",
    (
        "{name} = (lambda original: functools.wraps(original)("
        "lambda *args, **kwargs: original(*args, **kwargs) * 7.0))({name})"
    ),
    "{name} = torch.sin",
    "{name} = 7.0",
    "{name}.note = 7.0",
)
_LIBRARIES = ("torch.", "math.", "functools.")
_UNRELATED = (
    "nbcache_unrelated = 7.0",
    "def nbcache_unrelated(x):\n    return x + 7.0",
    "class NbcacheUnrelated:\n    k = 7.0",
    "import fractions as nbcache_unrelated",
    "nbcache_unrelated = torch.nn.Linear(4, 4).state_dict",
    "nbcache_unrelated = [each for each in range(7)]",
)


@dataclass(frozen=True)
class Mutant:
    """An edited program."""

    change: str
    source: str


def changed(source: str, count: int, seed: int) -> Iterator[Mutant]:
    """Yield `count` programs that differ from `source` in one thing each; fewer where there are not as many.

    `source` begins with the common set-up, which stays as it is.
    """
    chance = random.Random(seed)
    seen = {rewritten(source)}
    for _ in range(20 * count):
        if count <= 0:
            return
        cells = [ast.parse(cell) for cell in _own(source).split(CELL)]
        what = chance.choices((_node, _statement, _inserted), (4, 1, 3))[0](cells, chance)
        if what is None:
            continue
        mutant = _joined(cells)
        if mutant in seen or not _compiles(mutant):
            continue
        seen.add(mutant)
        count -= 1
        yield Mutant(what, mutant)


def rewritten(source: str, seed: int | None = None) -> str:
    """Return a program that means the same: laid out anew, with something unrelated where a seed is given."""
    cells = [ast.parse(cell) for cell in _own(source).split(CELL)]
    if seed is not None:
        chance = random.Random(seed)
        cell = chance.choice(cells)
        where = chance.randint(0, len(cell.body))
        cell.body[where:where] = ast.parse(chance.choice(_UNRELATED)).body
    return _joined(cells)


def _own(source: str) -> str:
    assert source.startswith(SET_UP)
    return source.removeprefix(SET_UP)


def _joined(cells: list[ast.Module]) -> str:
    return SET_UP + f"\n{CELL}".join(ast.unparse(ast.fix_missing_locations(cell)) + "\n" for cell in cells)


def _compiles(source: str) -> bool:
    try:
        for cell in source.split(CELL):
            compile(cell, "a cell", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


# --- what is changed --------------------------------------------------------------------------------


def _node(cells: list[ast.Module], chance: random.Random) -> str | None:
    """Change a node."""
    node = chance.choice([node for cell in cells for node in ast.walk(cell)])
    before = ast.unparse(node)
    change = _CHANGES.get(type(node))
    if change is not None:
        change(node, cells, chance)
    after = ast.unparse(node)
    return None if after == before else f"{before!r} became {after!r}"


def _constant(node: ast.Constant, cells: list[ast.Module], chance: random.Random) -> None:
    match node.value:
        case bool():
            node.value = not node.value
        case int() | float() as value:
            other = float(value) if isinstance(value, int) else int(value) if value.is_integer() else 0
            node.value = chance.choice((value + 1, -value, other, 0, True))
        case str() as text:
            texts = [
                *_of(cells, ast.Constant, lambda each: each.value if isinstance(each.value, str) else "")
            ]
            node.value = chance.choice([f"{text}x", "", *texts])
        case None:
            node.value = 7.0


def _operator(node: ast.AST, cells: list[ast.Module], chance: random.Random) -> None:
    if isinstance(node, ast.Compare):
        node.ops[0] = _OTHER[type(node.ops[0])]()
    elif isinstance(node, (ast.BinOp, ast.AugAssign, ast.BoolOp)):
        node.op = _OTHER.get(type(node.op), ast.Add)()
        if isinstance(node, ast.BinOp) and chance.random() < 0.3:
            node.left, node.right = node.right, node.left


def _name(node: ast.Name, cells: list[ast.Module], chance: random.Random) -> None:
    if not isinstance(node.ctx, ast.Load):
        return
    if node.id in _HARNESS:
        node.id = chance.choice(_HARNESS)
    else:
        node.id = chance.choice([*_of(cells, ast.Name, lambda each: each.id), "X", "W"])


def _attribute(node: ast.Attribute, cells: list[ast.Module], chance: random.Random) -> None:
    node.attr = chance.choice([*_of(cells, ast.Attribute, lambda each: each.attr)])


def _call(node: ast.Call, cells: list[ast.Module], chance: random.Random) -> None:
    if node.keywords and chance.random() < 0.5:
        node.keywords.pop(chance.randrange(len(node.keywords)))
    elif len(node.args) > 1 and chance.random() < 0.5:
        node.args.reverse()
    elif node.args:
        node.args.pop(chance.randrange(len(node.args)))


def _sequence(node: Any, cells: list[ast.Module], chance: random.Random) -> None:
    if not isinstance(getattr(node, "ctx", ast.Load()), ast.Load) or not node.elts:
        return
    if chance.random() < 0.5 and len(node.elts) > 1:
        node.elts.reverse()
    else:
        node.elts.pop(chance.randrange(len(node.elts)))


def _dict(node: ast.Dict, cells: list[ast.Module], chance: random.Random) -> None:
    if not node.keys:
        return
    if chance.random() < 0.5 and len(node.keys) > 1:
        node.keys.reverse()
        node.values.reverse()
    else:
        where = chance.randrange(len(node.keys))
        del node.keys[where], node.values[where]


def _definition(node: Any, cells: list[ast.Module], chance: random.Random) -> None:
    if node.decorator_list and chance.random() < 0.5:
        node.decorator_list.pop(chance.randrange(len(node.decorator_list)))
    elif isinstance(node, ast.ClassDef) and node.bases:
        node.bases.pop(chance.randrange(len(node.bases)))
    elif isinstance(node, ast.FunctionDef):
        added = chance.choice(
            ("torch.no_grad()", "functools.cache", "staticmethod", "property", "torch.relu")
        )
        node.decorator_list.append(ast.parse(added, mode="eval").body)


def _condition(node: Any, cells: list[ast.Module], chance: random.Random) -> None:
    node.test = ast.UnaryOp(ast.Not(), node.test)


_CHANGES: dict[type[ast.AST], Callable[[Any, list[ast.Module], random.Random], None]] = {
    **dict.fromkeys((ast.BinOp, ast.BoolOp, ast.Compare, ast.AugAssign), _operator),
    **dict.fromkeys((ast.List, ast.Tuple, ast.Set), _sequence),
    **dict.fromkeys((ast.FunctionDef, ast.ClassDef), _definition),
    **dict.fromkeys((ast.If, ast.IfExp, ast.While), _condition),
    ast.Attribute: _attribute,
    ast.Call: _call,
    ast.Constant: _constant,
    ast.Dict: _dict,
    ast.Name: _name,
}


def _statement(cells: list[ast.Module], chance: random.Random) -> str | None:
    """Delete a statement, have it twice, or swap it with the next."""
    body = chance.choice([*_blocks(cells)])
    where = chance.randrange(len(body))
    text = ast.unparse(body[where])
    if "results" in text:
        return None
    match chance.choice(("delete", "repeat", "swap")):
        case "delete":
            body[where : where + 1] = [] if len(body) > 1 else [ast.Pass()]
            return f"{text!r} is gone"
        case "repeat":
            body.insert(where, body[where])
            return f"{text!r} is there twice"
        case _ if where + 1 < len(body):
            body[where], body[where + 1] = body[where + 1], body[where]
            return f"{text!r} comes later"
    return None


def _blocks(cells: list[ast.Module]) -> Iterator[list[ast.stmt]]:
    """Yield the statements of each cell, and of each block in it."""
    for cell in cells:
        for node in ast.walk(cell):
            for field in ("body", "orelse", "finalbody"):
                found = getattr(node, field, None)
                if isinstance(found, list) and found:
                    yield found


def _inserted(cells: list[ast.Module], chance: random.Random) -> str | None:
    """Insert a statement that changes what the program has made, or torch's state."""
    top = [each for cell in cells for each in cell.body]
    names: dict[tuple[str, ...], list[str]] = {
        _OF_FUNCTIONS: [each.name for each in top if isinstance(each, ast.FunctionDef)],
        _OF_CLASSES: [each.name for each in top if isinstance(each, ast.ClassDef)],
        _OF_VALUES: [
            target.id
            for each in top
            if isinstance(each, ast.Assign)
            for target in each.targets
            if isinstance(target, ast.Name) and target.id != "results"
        ],
        _OF_LIBRARIES: [
            each for each in _of(cells, ast.Attribute, ast.unparse) if each.startswith(_LIBRARIES)
        ],
        _STATE: ["torch"],
    }
    templates = chance.choice([each for each, found in names.items() if found])
    others = [each for found in names.values() for each in found]
    text = chance.choice(templates).format(
        name=chance.choice(names[templates]),
        other=chance.choice(others),
        attribute=chance.choice([*_of(cells, ast.Attribute, lambda each: each.attr), "note"]),
    )
    if not _compiles(text):
        return None
    cell = chance.choice(cells)
    ends = [number for number, each in enumerate(cell.body) if "results" in ast.unparse(each)]
    where = ends[0] if ends else len(cell.body)
    cell.body[where:where] = ast.parse(text).body
    return f"{text!r} was inserted"


def _of(cells: list[ast.Module], kind: type[Any], value: Callable[[Any], str]) -> Iterator[str]:
    """Yield what each node of a kind is, each once, in the order in which they stand there."""
    found = [value(node) for cell in cells for node in ast.walk(cell) if isinstance(node, kind)]
    yield from dict.fromkeys(each for each in found if each and each != "results")
