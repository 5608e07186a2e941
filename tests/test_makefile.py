"""`make` makes the environment that is asked for, and makes it anew for another Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support.environ import passed

ROOT = Path(__file__).parents[1]
FAKE = """\
#!/bin/sh
echo "$0 $*" >>"$CALLS"
case "$*" in
*"print(sys.version"*) echo "$NAMED" ;;
"-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
esac
"""


def run_make(*arguments: str, folder: Path = ROOT, **more: str) -> subprocess.CompletedProcess[str]:
    """Run `make` as one does by hand, not as part of the `make` that runs the tests."""
    environ = passed(os.environ) | more
    return subprocess.run(
        ["make", *arguments], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )


class Checkout:
    """What `make` reads, and a Python that only notes what it is called with."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder, folder / "calls"
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, folder)
        self.python = folder / "python"
        self.python.write_text(FAKE)
        self.python.chmod(0o755)

    def make(self, *arguments: str, python: str = "3.11") -> list[str]:
        """Return what was called, as far as it makes or fills an environment."""
        self.calls.write_text("")
        done = run_make(
            f"PYTHON={self.python}", *arguments, folder=self.folder, CALLS=str(self.calls), NAMED=python
        )
        assert done.returncode == 0, done.stderr
        lines = self.calls.read_text().splitlines()
        return [line.partition(" ")[2] for line in lines if "-m venv" in line or "-m pip" in line]


@pytest.mark.xdist_group("of one worker")
def test_the_tests_of_a_group_are_run_by_one_worker(request: pytest.FixtureRequest, worker_id: str) -> None:
    """Else each worker makes the fixtures that they share."""
    assert worker_id == "master" or request.node.nodeid.endswith("@of one worker")


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_an_environment_is_made_once_and_anew_for_another_python(checkout: Checkout) -> None:
    made, filled = checkout.make(".venv/installed")
    assert made == "-m venv .venv" and "--constraint .venv/constraints.txt" in filled
    left = checkout.folder / ".venv" / "left"
    left.touch()

    assert checkout.make(".venv/installed") == [] and left.exists()
    assert checkout.make(".venv/installed", python="3.12")[0] == "-m venv .venv" and not left.exists()
    assert checkout.make(".venv/installed", python="3.12") == []


def test_another_torch_has_an_environment_of_its_own_with_the_other_versions_as_they_are(
    checkout: Checkout,
) -> None:
    checkout.make(".venv/installed")
    made, filled = checkout.make("TORCH=2.15.0", ".venv-torch-2.15.0/installed")

    assert made == "-m venv .venv-torch-2.15.0" and ".venv-torch-2.15.0/constraints.txt" in filled
    usual = (checkout.folder / ".venv/constraints.txt").read_text().splitlines()
    other = (checkout.folder / ".venv-torch-2.15.0/constraints.txt").read_text().splitlines()
    changed = [pair for pair in zip(usual, other, strict=True) if pair[0] != pair[1]]
    assert [new for _, new in changed] == ["torch==2.15.0"]


def test_all_tests_are_run_on_another_torch() -> None:
    def steps(*arguments: str) -> list[str]:
        done = run_make("-n", "--no-print-directory", *arguments)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.replace(".venv-torch-2.15.0", ".venv").splitlines()
        return [line for line in lines if line.startswith(".venv/bin/") and "pip install" not in line]

    assert steps("test-torch", "TORCH=2.15.0") == steps("test-all") != []


def test_make_test_torch_asks_which_torch() -> None:
    done = run_make("test-torch")
    assert done.returncode != 0 and "TORCH=" in done.stderr
