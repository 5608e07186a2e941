"""The values that every layer passes around."""

import json
from dataclasses import replace

from nbcache.core.model import Direction, Level, Outcome
from nbcache.core.reports import Cell, CellReport, GraphRecord

GRAPH = GraphRecord(
    function="f",
    compile_id="0/1",
    direction=Direction.FORWARD,
    outcome=Outcome.HIT,
    cell=Cell.of("f(x)", 3),
    level=Level.L1,
    source="local store",
    seconds={"dynamo": 0.25, "total": 0.5},
    saved_seconds=4.0,
    bytes={"inductor": 100},
)


def test_a_records_json_has_its_stable_names() -> None:
    assert (GRAPH.cell and GRAPH.cell.label, Cell.of("f(x)", None).label) == ("In[3]", "In[ ]")
    assert json.loads(json.dumps(GRAPH.to_json())) == {
        "cell": {"execution_count": 3, "digest": Cell.of("f(x)", 3).digest},
        "function": "f",
        "function_cell": None,
        "location": "",
        "compile_id": "0/1",
        "direction": "forward",
        "outcome": "hit",
        "level": "L1",
        "source": "local store",
        "reason": None,
        "key": None,
        "seconds": {"dynamo": 0.25, "total": 0.5},
        "saved_seconds": 4.0,
        "operators": None,
        "kernels": 0,
        "kernels_compiled": 0,
        "bytes": {"inductor": 100},
        "trace": None,
        "recompile_reason": None,
        "versions": None,
        "recompile_limit": None,
        "graph_break_reason": None,
        "threads": None,
    }


def test_a_report_counts_its_graphs() -> None:
    miss = replace(GRAPH, outcome=Outcome.MISS, level=None, saved_seconds=None, seconds={"total": 2.0})
    report = CellReport(GRAPH.cell, (GRAPH, miss), seconds=3.0, notices=("a notice",))
    assert (report.count(Outcome.HIT), report.count(Outcome.MISS), report.count(Outcome.BYPASS)) == (1, 1, 0)
    assert (report.compile_seconds, report.saved_seconds) == (2.5, 4.0)
    shown = json.loads(json.dumps(report.to_json()))
    assert (shown["hits"], shown["misses"], shown["notices"]) == (1, 1, ["a notice"])
    assert [graph["outcome"] for graph in shown["graphs"]] == ["hit", "miss"]
