"""What restoring came to: counted, audited, and shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nbcache.core.model import ArtifactRef, Direction, GraphSummary, Level, Outcome
from nbcache.core.reports import Cell, Explanation, GraphRecord
from nbcache.kernel.explain.components import Difference
from nbcache.kernel.explain.stats import Fate, Refusal, Stats, TypeTally, by_type, find_fates, lifetime, tally
from nbcache.storage.history import run_of
from nbcache.ui.display.stats import render_stats

CELL = Cell.of("f(x)", 3)
HIT = GraphRecord(
    "Model.forward",
    "0/0",
    Direction.FORWARD,
    Outcome.HIT,
    CELL,
    level=Level.L1,
    source="local store",
    key="k1",
    seconds={"load": 0.25, "total": 0.25},
    saved_seconds=18.0,
)
BY_TORCH = replace(HIT, key="k2", level=Level.L0, saved_seconds=2.0)
SHARED = replace(
    HIT, key="k3", level=Level.L3, seconds={"wait": 1.0, "load": 0.5, "total": 1.5}, saved_seconds=3.0
)
MISS = replace(
    HIT,
    function="loss",
    key="k9",
    outcome=Outcome.MISS,
    level=None,
    source=None,
    seconds={"wait": 0.5, "inductor": 6.0, "total": 6.5},
    saved_seconds=None,
    reason="not stored: constant lr: 0.001 before, 0.0003 now",
)
BYPASS = replace(MISS, outcome=Outcome.BYPASS, key=None, seconds={"total": 9.0}, reason="it is \n so")


def stored(key: str, function: str = "loss", cell: str = CELL.digest) -> GraphSummary:
    return GraphSummary(cell, function, Direction.FORWARD, Outcome.MISS, key, 6.0)


def fates(*summaries: GraphSummary, graphs: list[GraphRecord], **more: Any) -> dict[str, Fate]:
    explained = more.pop("explained", ())
    return {each.key: each.fate for each in find_fates(summaries, graphs, explained, **more)}


def test_graphs_are_counted_by_outcome_and_level() -> None:
    found = tally([HIT, BY_TORCH, SHARED, MISS, MISS, BYPASS])
    assert (found.graphs, found.hits, found.missed, found.bypassed, found.disabled) == (6, 3, 2, 1, 0)
    assert [(each.level, each.hits, each.saved_seconds) for each in found.levels] == [
        (Level.L0, 1, 2.0),
        (Level.L1, 1, 18.0),
        (Level.L3, 1, 3.0),
    ]
    assert (found.saved_seconds, found.saved_by_torch_seconds) == (21.0, 2.0)
    assert (found.waited_seconds, found.waited_in_vain_seconds) == (2.0, 1.0)
    assert found.seconds == 0.25 + 0.25 + 0.5 + 6.0 + 6.0 + 9.0
    assert tally([]).levels == tally([]).reasons == ()
    note = "traced again: it is so; re-tuned: 1 kernel was benchmarked again"
    assert tally([HIT, replace(HIT, reason=note), replace(MISS, reason=note)]).retuned == 1


def test_reasons_are_ranked_by_seconds() -> None:
    found = tally([MISS, MISS, replace(BYPASS, seconds={"total": 14.0}), replace(MISS, reason=None)])
    assert [(each.reason, each.graphs, each.seconds) for each in found.reasons] == [
        ("bypass: it is so", 1, 14.0),
        ("miss: not stored: constant lr: 0.001 before, 0.0003 now", 2, 13.0),
        ("miss: no reason known", 1, 6.5),
    ]


def test_what_was_hit_was_used_and_what_was_made_here_was_not_stored_before() -> None:
    found = fates(stored("k1"), stored("k9"), stored(""), graphs=[HIT, MISS, replace(MISS, key="")])
    assert found == {"k1": Fate.USED}
    # made here, then hit where the function is compiled anew
    assert fates(stored("k9"), graphs=[MISS, replace(HIT, key="k9")]) == {}


def test_what_was_stored_and_is_not_there_any_more_was_lost() -> None:
    (found,) = find_fates([stored("k9")], [MISS], (), lost={"k9"})
    assert (found.fate, found.why) == (Fate.LOST, MISS.reason)


def test_by_what_change_a_graph_was_not_used() -> None:
    differs = Explanation("k8", (Difference("constant lr", "0.001", "0.0003"),))
    (found, other) = find_fates([stored("k8"), stored("k7")], [MISS], [differs, None])
    assert (found.fate, found.why) == (Fate.CHANGED, "constant lr: 0.001 before, 0.0003 now")
    assert (other.fate, other.why) == (Fate.OTHER, "")


def test_what_nobody_asked_for_is_told_from_what_was_not_reached() -> None:
    summaries = (stored("a", "g"), stored("b", "g", "another cell"))
    found = fates(*summaries, graphs=[MISS], ran={CELL.digest})
    assert found == {"a": Fate.IDLE, "b": Fate.UNREACHED}


def test_a_graph_that_two_cells_name_is_one() -> None:
    assert len(find_fates([stored("k1"), stored("k1", cell="edited")], [HIT], ())) == 1


def test_artifacts_are_counted_by_type() -> None:
    refs = [ArtifactRef("inductor", key, key * 64, 100) for key in "ab"]
    refs.append(ArtifactRef("cpp_kernel", "a", "a" * 64, 7))
    found = by_type(refs, {("inductor", "a"), ("autotune", "shared")})
    assert found == (
        TypeTally("autotune", 0, 0, 1, 0),
        TypeTally("cpp_kernel", 1, 7, 0, 0),
        TypeTally("inductor", 2, 200, 1, 100),
    )


def the_stats(**changes: Any) -> Stats:
    graphs = [HIT, BY_TORCH, SHARED, MISS, BYPASS, replace(HIT, reason="re-tuned: 1 kernel was benchmarked")]
    runs = [
        run_of(graph, time=1000.0 + number, kernel=f"{number % 2}", number=number, environment="e")
        for number, graph in enumerate(graphs)
    ]
    differs = Explanation("k8", (Difference("constant lr", "0.001", "0.0003"),))
    made = Stats(
        session=tally(graphs),
        stored=find_fates([stored("k1"), stored("k8"), stored("z", "g", "other")], graphs, [differs]),
        types=by_type([ArtifactRef("inductor", "k1", "a" * 64, 170_000)], {("inductor", "k1")}),
        traces={"adopted": 2, "outdated": 1},
        missed_unchanged=tuple(run for run in runs if run.outcome is Outcome.MISS),
        refused=(Refusal("12 artifacts", "<b>nobody</b> trusts\x1b[31m them"),),
        overhead_seconds=0.5,
        notebook=lifetime(runs, now=1000.0 + 86400),
        store=lifetime([*runs, *runs], most=12),
    )
    return replace(made, **changes)


def test_net_is_what_was_saved_against_plain_torch_less_what_it_cost() -> None:
    stats = the_stats()
    assert stats.net_seconds == 39.0 - 0.5 - 0.5  # torch's own folder does not count, waiting in vain does
    assert stats.fates() == {Fate.USED: 1, Fate.CHANGED: 1, Fate.UNREACHED: 1}
    assert (stats.notebook.kernels, stats.notebook.since, stats.notebook.is_cut) == (2, 1000.0, False)
    assert stats.store.is_cut


def test_it_reads_as_a_page() -> None:
    shown = render_stats(the_stats(), "model.ipynb", at=1000.0 + 3 * 86400)
    lines = shown.text.splitlines()
    assert lines[0].startswith("nbcache stats · this kernel · 6 graphs · 4 of 6 hits (67 %)")
    net = "  net 38.0 s: 39.0 s saved against plain torch, less 0.50 s that nbcache took and 0.50 s waited"
    assert f"{net} in vain" in lines
    for line in (
        "  torch's own folder saved 2.0 s, as without nbcache",
        "  stored traces: 2 adopted, 1 outdated",
        "  1 hit re-tuned: kernels were benchmarked again",
        "  1 graph missed in cells that are the same as last time: In[3] loss forward",
        "  3 graphs stored before · 1 used · 1 not used: changed since · 1 of cells that have not run",
        "  changed since: loss forward, 6.0 s: constant lr: 0.001 before, 0.0003 now",
        "  refused: 12 artifacts: <b>nobody</b> trusts?[31m them",
        "       1  9.0 s  bypass: it is so",
    ):
        assert line in lines, line
    assert (
        "all of model.ipynb · saved this week: 39.0 s in 2 kernels · 6 graphs" in shown.text
        and "in 2 kernels since 3 days ago" in shown.text
    )
    assert lifetime([run_of(HIT, time=1.0, kernel="", number=0, environment="e")], now=1e9).week_kernels == 0
    assert "all notebooks · 12 graphs" in shown.text
    assert max(map(len, lines)) <= 110
    assert shown.text.replace("–", "").replace("·", "").isascii()
    assert "<b>nobody" not in shown.html and "model.ipynb" in shown.html


def test_one_notebook_is_not_told_twice() -> None:
    stats = the_stats()
    text = render_stats(replace(stats, store=stats.notebook), "").text
    assert "all notebooks" not in text and "all kernels without a known notebook" in text


def test_a_kernel_that_has_compiled_nothing_says_so() -> None:
    none = lifetime([])
    stats = Stats(tally([]), (), (), (), 0.1, none, none)
    shown = render_stats(stats, "n.ipynb")
    assert shown.text.splitlines()[0] == "nbcache stats · this kernel · nothing compiled"
    assert shown.data is not None and shown.data["notebook"]["since"] is None
