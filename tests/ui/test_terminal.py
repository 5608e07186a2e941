"""The `nbcache` command, where it is not about what a verb does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from nbcache.core.reports import Cell
from nbcache.core.trust import Keyring
from nbcache.snapshots.verify import receive
from nbcache.ui.display.cell_titles import cell_titles
from nbcache.ui.display.snapshots import snapshot_lines
from nbcache.ui.terminal.parser import main
from support.live_kernels import HERE
from support.people import Person


@pytest.mark.parametrize(
    "arguments", [["trust"], ["trust", "list", "--json"], ["ls", "./store"], ["gc", "./store"], ["--help"]]
)
def test_a_command_ends_quietly_where_nobody_reads_what_it_prints(
    arguments: list[str], isolated: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "store").mkdir(exist_ok=True)
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "nbcache", *arguments],
        env=isolated,
        cwd=tmp_path,
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)

    assert done.stderr == b""
    assert done.returncode in ((0, 141) if arguments == ["--help"] else (141,))  # argparse hides it


def test_cells_of_a_snapshot_go_by_their_first_line_where_the_notebook_is_at_hand(
    tmp_path: Path,
) -> None:
    ada = Person(tmp_path / "ada")
    source = "%%compile_cached step\ndef step(x): ..."
    session, bridge, sharing = ada.session()
    session.begin_cell(Cell.of(source, 3))
    bridge.compile("one")
    session.end_cell()
    session.flush(10)
    sharing.write(ada.snapshot, sharing.origin(str(ada.notebook)))
    session.close()

    def shown() -> str:
        where = str(ada.snapshot)
        (received,) = receive(ada.snapshot.read_bytes(), Keyring(ada.keys), where=where)
        titles = cell_titles(where, received.snapshot, max_bytes=10**6)
        return "\n".join(snapshot_lines(received, HERE, titles=titles))

    assert Cell.of(source, 3).digest in shown()
    cells = [nbformat.v4.new_code_cell("1 + 1"), nbformat.v4.new_code_cell(source, execution_count=3)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), ada.notebook)
    assert "In[3] %%compile_cached step " in shown()
    ada.notebook.write_text("no notebook")
    assert Cell.of(source, 3).digest in shown()


def test_wrong_usage_is_told_apart_from_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trust", "add", "no fingerprint"]) == 2
    assert "is no fingerprint" in capsys.readouterr().err
