"""A torch that is built otherwise costs the parts of nbcache that it has no place for, and never a cell.

`doctored_torch` returns a list of what is wrong. It goes by what is hooked, so that no hook can be left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.front_door import run_interpreter

pytestmark = pytest.mark.compile

DOCTORED = Path(__file__).parents[1] / "support" / "doctored_torch.py"


def found(what: str, environ: dict[str, str], folder: Path) -> Any:
    done = run_interpreter([str(DOCTORED), what], environ, folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_all_that_is_replaced_is_a_hook_that_cannot_fail_its_caller(
    isolated: dict[str, str], tmp_path: Path
) -> None:
    told = found("all_guarded", isolated, tmp_path)
    assert told["hooks"] > 30 and told["unguarded"] == []


@pytest.mark.parametrize("what", ["all_missing", "all_moved"])
def test_what_is_missing_or_takes_other_arguments_costs_its_part_alone(
    what: str, isolated: dict[str, str], tmp_path: Path
) -> None:
    assert found(what, isolated, tmp_path) == []


@pytest.mark.proof
def test_whatever_a_hook_gets_its_caller_sees_what_torch_does(
    isolated: dict[str, str], tmp_path: Path
) -> None:
    assert found("all_called", isolated, tmp_path) == []


@pytest.mark.proof
@pytest.mark.parametrize("what", ["all_compiled", "all_failing"])
def test_code_compiles_and_runs_without_any_one_part(
    what: str, isolated: dict[str, str], tmp_path: Path
) -> None:
    assert found(what, isolated, tmp_path) == []
