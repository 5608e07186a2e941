"""The values that every layer passes around."""

import json
from dataclasses import FrozenInstanceError, replace

import pytest

from nbcache.core.key import components
from nbcache.core.model import Artifact, ArtifactRef, Direction, Environment, Level, Outcome
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


def test_an_artifact_is_named_by_the_digest_of_its_content() -> None:
    artifact = Artifact("inductor", "key", b"content")
    assert artifact.digest == "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73"
    assert artifact.digest == replace(artifact, key="another").digest
    assert artifact.digest != replace(artifact, content=b"other").digest


def test_an_artifacts_repr_leaves_its_content_out() -> None:
    assert "secret" not in repr(Artifact("inductor", "key", b"secret"))


@pytest.mark.parametrize("change", [{"type": "pgo"}, {"key": "other"}, {"digest": "1" * 64}])
def test_a_reference_is_another_artifact_when_its_type_key_or_digest_is(change: dict[str, str]) -> None:
    ref = ArtifactRef("inductor", "key", "0" * 64, 1)
    assert replace(ref, **change).identity != ref.identity  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [{"used": 1.0}, {"created": 1.0}, {"cell": "c"}, {"function": "f"}])
def test_a_reference_is_the_same_artifact_whoever_used_it_and_when(change: dict[str, object]) -> None:
    ref = ArtifactRef("inductor", "key", "0" * 64, 1)
    assert replace(ref, **change).identity == ref.identity  # type: ignore[arg-type]


def test_an_environment_is_told_by_its_components() -> None:
    one = Environment(components({"torch": "2.13.0", "cpu": "avx2"}))
    assert one.digest == Environment(components({"cpu": "avx2", "torch": "2.13.0"})).digest
    assert one.digest != Environment(components({"torch": "2.13.0", "cpu": "avx512"})).digest


def test_a_cell_is_told_by_its_source() -> None:
    assert Cell.of("f(x)", 1).digest == Cell.of("f(x)", 2).digest
    assert Cell.of("f(x)", 1).digest != Cell.of("f(y)", 1).digest
    assert len(Cell.of("f(x)", 1).digest) == 16


def test_a_cell_is_called_as_jupyter_calls_it() -> None:
    assert Cell.of("f(x)", 3).label == "In[3]"
    assert Cell.of("f(x)", None).label == "In[ ]"


def test_a_record_cannot_be_changed() -> None:
    seconds = {"total": 1.0}
    graph = replace(GRAPH, seconds=seconds)
    seconds["total"] = 2.0
    assert graph.total_seconds == 1.0
    with pytest.raises(TypeError):
        graph.seconds["total"] = 3.0  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        graph.key = "k"  # type: ignore[misc]


def test_a_records_json_has_its_stable_names() -> None:
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
