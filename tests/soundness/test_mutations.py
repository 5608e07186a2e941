"""Whatever a mutant of a program does in another case, no trace of before answers unless it is right."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from soundness.answers import adopts, difference
from soundness.mutations import changed, rewritten
from soundness.program_files import CASE, CELL, SET_UP, programs, with_cases
from soundness.restarts import Pair

from support.torch_versions import needs_traces

PROGRAMS = {
    name: program
    for name, program in programs(of_keys=False).items()
    if program.changes and not program.cases
}
MUTANTS = int(os.environ.get("NBCACHE_TEST_MUTANTS", "10"))
"""The number of mutants of each program."""
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
"""
"""Runs eagerly what no trace fits: only what is adopted may be wrong, and tracing takes long."""


def test_a_mutant_is_another_program_that_python_compiles() -> None:
    source = max((program.source for program in PROGRAMS.values()), key=len)

    mutants = [*changed(source, 50, SEED)]

    assert len({mutant.source for mutant in mutants} | {source, rewritten(source)}) == 52
    assert mutants == [*changed(source, 50, SEED)] != [*changed(source, 50, SEED + 1)]
    for mutant in mutants:
        compile(mutant.source, "a cell", "exec")
        assert mutant.source.startswith(SET_UP) and mutant.change


@pytest.mark.proof
@pytest.mark.compile
@needs_traces
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.xdist_group(f"mutants {number % 2}"))
        for number, name in enumerate(PROGRAMS)
    ],
)
def test_no_trace_answers_for_a_mutant_whose_answer_is_another(name: str, both: Pair, tmp_path: Path) -> None:
    first, second = both
    source, folder = rewritten(PROGRAMS[name].source), tmp_path / "kernels"
    mutants = [*changed(source, MUTANTS, SEED)]
    same = [rewritten(source, SEED + number) for number in range(2)]
    merged = CASE + CELL + with_cases([source, *(mutant.source for mutant in mutants), *same])
    first.run(merged, folder)

    problems = []
    for case, mutant in enumerate(mutants, 1):
        answer = second.run(merged, folder, case=case, patch=EAGERLY)
        expected = second.run(merged, tmp_path / "eager", eager=True, case=case)
        if "error" in answer and "error" in expected:
            continue
        if wrong := difference(answer, expected):
            later = second.run(merged, tmp_path / "eager", eager=True, case=case)
            if not {"error"} & {*expected, *later} and difference(later, expected):
                continue  # it answers differently each time: `random.seed()`
            # torch itself may answer otherwise
            cold = second.run(merged, tmp_path / f"cold{case}", case=case)
            both_fail = "error" in answer and "error" in cold
            problems += [(mutant, wrong)] if not both_fail and difference(answer, cold) else []
    assert not problems

    again = adopts(second.run(merged, folder, patch=EAGERLY))
    for case in range(len(mutants) + 1, len(mutants) + 3):
        assert adopts(second.run(merged, folder, case=case, patch=EAGERLY)) == again
