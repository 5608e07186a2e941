"""Programs whose cells stay the same while something outside of them changes: no answer is stale.

Each program is merged with its edits into one text; a file, a variable or an argument picks an edit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from soundness.answers import adopts, difference, reasons
from soundness.program_files import CASE, CELL, Edit, Program, apply, programs, with_cases
from soundness.restarts import Pair

from support import rotation
from support.torch_versions import needs_traces

pytestmark = needs_traces

CASES = (
    CASE,
    "import pathlib\nCASE = int(pathlib.Path('case.txt').read_text())\n",
    "import sys\nCASE = int(sys.argv[1])\n",
)
"""First cells: the text of all cells is the same in each case."""
PROGRAMS = programs(of_keys=False)
SHARE = 0.6
"""The share of a group's programs that must adopt a trace when nothing has changed."""
GROUPS = 2 * rotation.TENTHS
"""Two groups a tenth, so that two workers share it."""
AGREES = "traced again: its trace was audited, and agrees"


@dataclass(frozen=True)
class Merged:
    """A program and its edits as one text."""

    program: Program
    source: str
    edits: tuple[Edit, ...]
    """The edits in the order of the cases, from 1."""

    @property
    def cases(self) -> int:
        """The number of cases, the unedited one left out."""
        return self.program.cases or len(self.edits)

    def keeps_its_graphs(self, case: int) -> bool:
        """Return whether a case must adopt what the unedited program stored."""
        return bool(self.edits) and case > len(self.edits) - len(self.program.same)


def merge(program: Program) -> Merged:
    """Return a program and its edits as one text, without edits of comments and layout."""
    edits = (*program.changes, *program.same)
    source = with_cases([program.source, *(apply(program.source, edit) for edit in edits)])
    return Merged(program, CASES[len(program.name) % len(CASES)] + CELL + source, edits)


def groups() -> Iterator[Any]:
    """Yield the groups of programs, those of other days marked as proofs; or only the programs asked for."""
    if names := os.environ.get("NBCACHE_TEST_PROGRAMS"):
        yield pytest.param([PROGRAMS[name] for name in names.split(",")], marks=pytest.mark.compile)
        return
    for number in range(GROUPS):
        group = [*PROGRAMS.values()][number::GROUPS]
        yield pytest.param(group, id=f"group {number}", marks=rotation.marks(number))


def samples() -> list[Program]:
    """Return a program with an edit of each subject."""
    by_subject = {program.name.partition("/")[0]: program for program in PROGRAMS.values() if program.changes}
    return [*by_subject.values()]


@pytest.mark.parametrize("group", [*groups()])
def test_when_something_outside_the_cells_changes_every_answer_is_the_new_one(
    group: list[Program], both: Pair, tmp_path: Path
) -> None:
    first, second = both
    adopted, problems = [], []
    for text in map(merge, group):
        program, folder = text.program, tmp_path / text.program.name.replace("/", "-")
        first.run(text.source, folder / "kernels")
        for case in range(text.cases + 1):
            answer = second.run(text.source, folder / "kernels", case=case)
            if program.is_wrong_in_torch:
                off = second.having(NBCACHE_TRACE="off")
                right = off.run(text.source, folder / str(case), case=case)
            else:
                right = second.run(text.source, folder / "eager", eager=True, case=case)
            if wrong := difference(answer, right):
                problems.append((program.name, case, wrong))
                continue
            hits = adopts(answer)
            if case == 0:
                adopted += [program.name] if any(hits) else []
            if program.expect == "traced" and any(hits):
                problems.append((program.name, case, "a trace was adopted"))
            must_adopt = case == 0 or text.keeps_its_graphs(case)
            if program.expect == "adopted" and must_adopt and not all(hits):
                problems.append((program.name, case, f"traced again: {answer['graphs']}"))
    assert not problems, rotation.REPEAT
    may_adopt = [program.name for program in group if program.expect != "traced"]
    assert len(adopted) >= SHARE * len(may_adopt), (rotation.REPEAT, {*may_adopt} - {*adopted})


@pytest.mark.parametrize("group", [*groups()])
def test_an_audit_finds_what_another_process_stored(group: list[Program], both: Pair, tmp_path: Path) -> None:
    first, second = both
    for program in group:
        if program.expect == "adopted":
            source, folder = merge(program).source, tmp_path / program.name.replace("/", "-")
            traced = first.run(source, folder)

            audited = second.having(NBCACHE_TRACE="audit").run(source, folder)

            assert reasons(audited) == [AGREES] * len(reasons(traced)), (program.name, rotation.REPEAT)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, id=program.name, marks=rotation.marks(number))
        for number, program in enumerate(samples())
    ],
)
def test_after_an_edit_of_a_cell_no_trace_is_adopted(program: Program, both: Pair, tmp_path: Path) -> None:
    first, second = both
    source = apply(program.source, program.changes[0])
    first.run(program.source, tmp_path / "kernels")

    answer = second.run(source, tmp_path / "kernels")

    assert not difference(answer, second.run(source, tmp_path / "eager", eager=True))
    assert not any(adopts(answer)), rotation.REPEAT
