r"""Read the programs below `programs/`, and merge each with its edits into one text.

A program sets `results`, a function that takes a way to compile and returns tensors, or else defines `f`, a
function of X, or of X and W. A line `# %%` begins another cell. `set_up.py` runs before each program. A
program's header is the comment lines at its top:

    # edit: OLD => NEW      the answer may be another; `\n` in either text is a new line
    #  and: OLD => NEW      more of the same edit
    # insert: STATEMENT     an edit that inserts a statement before `results`
    # same: OLD => NEW      the graphs stay the same, and must hit
    # after: NAME           programs/NAME.py runs before the program
    # expect: adopted       every function has a trace that another kernel adopts (`traced`: none adopts one)
    # wrong in torch        torch itself answers wrongly: compare with nbcache without traces, not with eager
    # cases: NUMBER         the program reads CASE itself, and knows so many cases but the first
    # data: JSON            a list; the program reads as DATA the element with the index CASE
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

FOLDER = Path(__file__).parent / "programs"
CASE = "import os\nCASE = int(os.environ['CASE'])\n"
"""The lines that a text of several cases begins with, where a variable picks the case."""
CELL = "# %%\n"
"""The line that begins another cell of a program."""
SET_UP = (FOLDER / "set_up.py").read_text()

Edit = tuple[tuple[str, str], ...]
"""Texts, and the texts that replace them."""


@dataclass(frozen=True)
class Program:
    """A program, with the edits that change its graphs, and those that leave them as they are."""

    name: str
    """Path below `programs/`, without its ending."""
    source: str
    """With the common set-up."""
    changes: tuple[Edit, ...] = ()
    same: tuple[Edit, ...] = ()
    expect: str = ""
    cases: int = 0
    """The number of cases that the program itself tells apart, the first left out."""
    is_wrong_in_torch: bool = False


def read(path: Path) -> Program:
    """Return the program in a file."""
    lines = path.read_text().splitlines(keepends=True)
    start = next(number for number, line in enumerate(lines) if not line.startswith("# ") or line == CELL)
    edits: dict[str, list[Edit]] = {"edit": [], "same": []}
    words: dict[str, str] = {}
    last = edits["edit"]
    for line in lines[:start]:
        kind, _, text = line.removeprefix("#").rstrip("\n").partition(": ")
        kind = kind.strip()
        if kind == "insert":
            kind, text = "edit", f"results => {text}\\nresults"
        old, arrow, new = text.partition(" =>")
        new = new.removeprefix(" ")
        pair = (_unescape(old), _unescape(new))
        if kind == "and":
            last[-1] += (pair,)
        elif kind in edits:
            assert arrow, f"{path}: {line}"
            last = edits[kind]
            last.append((pair,))
        else:
            words[kind] = text
    unknown = words.keys() - {"after", "expect", "cases", "data", "wrong in torch"}
    assert not unknown, f"{path}: {unknown}"
    prelude = (FOLDER / f"{words['after']}.py").read_text() if "after" in words else ""
    cases = int(words.get("cases", 0))
    if "data" in words:
        prelude += f"import json\nDATA = json.loads('{words['data']}')[CASE]\n"
        cases = len(json.loads(words["data"])) - 1
    source = SET_UP + prelude + "".join(lines[start:])
    if not re.search(r"^(def )?results\b", source, re.MULTILINE):
        source += "results = infer(f, X, W)\n" if "\ndef f(x, w):" in source else "results = infer(f, X)\n"
    return Program(
        name=str(path.relative_to(FOLDER).with_suffix("")),
        source=source,
        changes=tuple(edits["edit"]),
        same=tuple(edits["same"]),
        expect=words.get("expect", ""),
        cases=cases,
        is_wrong_in_torch="wrong in torch" in words,
    )


def programs(*, of_keys: bool) -> dict[str, Program]:
    """Return by name the programs of `keys/`, edited in their text, or those of all other folders."""
    paths = [path for path in sorted(FOLDER.glob("*/*.py")) if (path.parent.name == "keys") is of_keys]
    return {program.name: program for program in map(read, paths)}


def apply(source: str, edit: Edit) -> str:
    """Return a program with an edit applied wherever its texts occur."""
    for old, new in edit:
        if old == "results":
            pattern = r"^(?=(def )?results\b)"
            new = new.removesuffix("results")
        else:
            pattern = rf"\b{old}\b" if old.isidentifier() else re.escape(old)
        source, count = re.subn(pattern, lambda match, new=new: new, source, flags=re.MULTILINE)
        assert count, old
    return source


# --- one text for a program and all its edits ------------------------------------------------------


def with_cases(sources: Sequence[str]) -> str:
    """Return a program that does what the source with index CASE does, and whose text tells no case.

    The sources must have equally many cells.
    """
    cells = [source.split(CELL) for source in sources]
    return CELL.join("\n".join(_merge(texts)) + "\n" for texts in zip(*cells, strict=True))


def _merge(texts: Sequence[str]) -> Iterator[str]:
    """Yield the statements of a cell: those in which the texts differ depend on CASE."""
    statements = [[ast.unparse(node) for node in ast.parse(text).body] for text in texts]
    first = statements[0]
    changes = [_changes(first, other) for other in statements]
    for index in range(len(first) + 1):
        for place, usual in ((index - 0.5, []), (index, first[index : index + 1])):
            word = "if"
            for case, change in enumerate(changes):
                if (block := change.get(place, usual)) != usual:
                    yield f"{word} CASE == {case}:\n{_indent(block)}"
                    word = "elif"
            if usual:
                yield usual[0] if word == "if" else f"else:\n{_indent(usual)}"


def _changes(first: list[str], other: list[str]) -> dict[float, list[str]]:
    """Return what replaces each changed statement by its index; inserted ones have the half before it."""
    changes: dict[float, list[str]] = {}
    for tag, start, stop, low, high in SequenceMatcher(None, first, other, autojunk=False).get_opcodes():
        if tag == "insert":
            changes[start - 0.5] = other[low:high]
        elif tag != "equal":
            changes |= {index: [] for index in range(start, stop)} | {start: other[low:high]}
    return changes


def _indent(statements: list[str]) -> str:
    body = [node for text in statements for node in ast.parse(text).body] or [ast.Pass()]
    block = ast.If(test=ast.Constant(True), body=body, orelse=[])
    return ast.unparse(block).partition("\n")[2]


def _unescape(text: str) -> str:
    return text.replace("\\n", "\n")
