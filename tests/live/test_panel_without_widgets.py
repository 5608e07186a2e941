"""A panel in a kernel whose front end has no widgets, as nbclient and papermill."""

from __future__ import annotations

import pytest

from support.front_door import LOAD, RunCells, shown

pytestmark = [pytest.mark.compile]


def test_where_nobody_can_press_a_button_a_panel_is_static_html(run_cells: RunCells) -> None:
    done = run_cells([LOAD, "%nbcache panel", "%nbcache panel settings"])

    (panel,) = done.cells[1].outputs
    assert set(panel.data) == {"text/plain", "text/html"}
    assert "<details" in panel.data["text/html"] and "<style" not in panel.data["text/html"]
    assert "run this cell again" not in panel.data["text/plain"]
    assert "widgets" not in done.metadata
    assert shown(done, 2).startswith("nbcache panel") and "GRAPHS" not in shown(done, 2)
