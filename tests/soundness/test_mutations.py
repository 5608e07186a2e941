"""However a program is mutated between two kernels, no trace of before answers unless its answer is right."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from soundness.attacks import ATTACKS
from soundness.mutations import changed, rewritten
from soundness.restarts import Restarts
from soundness.subjects import COLD, SET_UP
from soundness.test_edits import difference
from soundness.test_trace_edits import ADOPTED, reasons
from soundness.traced import PARTLY, TRACED

from support.torch_versions import needs_traces

SUBJECTS = {
    name: subject
    for name, subject in (TRACED | PARTLY | ATTACKS).items()
    if subject.source.startswith(SET_UP) and COLD not in subject.source
}
MUTANTS = int(os.environ.get("NBCACHE_TEST_MUTANTS", "20"))
"""How many are made of each program."""
SEED = int(os.environ.get("NBCACHE_TEST_SEED", "0"))
EAGERLY = """
import torch._dynamo.convert_frame as convert_frame
import torch._dynamo.exc as exceptions
class Nothing:
    def _cleanup_output_graph(self): pass
    def __getattr__(self, name): return None
def skip(*args, **kwargs):
    skipped = exceptions.SkipFrame("no trace fits")
    skipped._torch_dynamo_tracer_output = Nothing()
    raise skipped
convert_frame.trace_frame = skip
# %%
"""
"""Has what no trace fits run eagerly: only what is adopted may be wrong, and tracing takes long."""


def test_a_mutant_is_another_program_that_python_compiles() -> None:
    source = SUBJECTS["classes"].source

    mutants = [*changed(source, 200, SEED)]

    assert len({mutant.source for mutant in mutants} | {source, rewritten(source)}) == 202
    assert mutants == [*changed(source, 200, SEED)] != [*changed(source, 200, SEED + 1)]
    for mutant in mutants:
        compile(mutant.source, "a cell", "exec")
        assert mutant.source.startswith(SET_UP) and mutant.what


def adopted(answer: dict[str, Any]) -> list[bool]:
    return [reason.startswith(ADOPTED) for reason in reasons(answer)]


@pytest.mark.proof
@pytest.mark.compile
@needs_traces
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.xdist_group(f"mutants {number % 2}"))
        for number, name in enumerate(SUBJECTS)
    ],
)
def test_no_trace_answers_for_a_mutant_whose_answer_is_another(
    name: str, both: tuple[Restarts, Restarts], tmp_path: Path
) -> None:
    first, second = both
    source, folder = rewritten(SUBJECTS[name].source), tmp_path / "kernels"
    first.run(source, folder)

    problems = []
    for number, mutant in enumerate(changed(source, MUTANTS, SEED)):
        found = second.run(EAGERLY + mutant.source, folder)
        expected = second.run(mutant.source, tmp_path / "eager", eager=True)
        if "error" in found and "error" in expected:
            continue
        if wrong := difference(found, expected):
            later = second.run(mutant.source, tmp_path / "eager", eager=True)
            if not {"error"} & {*expected, *later} and difference(later, expected):
                continue  # it answers differently each time: `random.seed()`
            cold = second.run(mutant.source, tmp_path / f"cold{number}")  # torch itself may answer otherwise
            both_fail = "error" in found and "error" in cold
            problems += [(mutant, wrong)] if not both_fail and difference(found, cold) else []
    assert not problems

    again = adopted(second.run(EAGERLY + source, folder))
    for same in (rewritten(source, SEED), rewritten(source, SEED + 1)):
        assert adopted(second.run(EAGERLY + same, folder)) == again
