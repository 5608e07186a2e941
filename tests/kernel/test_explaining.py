"""All that there is to say of one graph: how often it may still be compiled, and what a graph break costs."""

from __future__ import annotations

from dataclasses import replace

from nbcache.core.model import Direction, Outcome
from nbcache.core.reports import Cell, Difference, Explanation, GraphRecord
from nbcache.kernel.explain.why import Why, explain

GRAPH = GraphRecord("f", "0/5", Direction.INFERENCE, Outcome.MISS, cell=Cell.of("f()", 1))


def test_a_recompile_says_how_many_are_left() -> None:
    recompiled = replace(GRAPH, recompile_reason="0/0: a guard", versions=6, recompile_limit=8)
    assert Why(recompiled).meter.startswith("6 of at most 8 versions")
    assert Why(GRAPH).meter == ""


def test_a_graph_break_says_how_many_graphs_its_function_fell_into() -> None:
    broken = replace(GRAPH, compile_id="0/0", graph_break_reason="print")
    rest = replace(GRAPH, compile_id="1/0", function="f (resumed)")
    backward = replace(rest, direction=Direction.BACKWARD)
    other = replace(GRAPH, compile_id="2/0", function="g")
    elsewhere = replace(GRAPH, compile_id="3/0", cell=Cell.of("f(2)", 2))

    first, second = explain([broken, rest], [broken, rest, backward, other, elsewhere])

    assert first.cost.startswith("f fell into 2 graphs")
    assert second.cost == "" and second.fell_into == 2
    assert Why(broken).cost == ""


def test_the_parts_of_a_method_after_its_graph_break_count_as_well() -> None:
    broken = replace(
        GRAPH, function="Net.forward", compile_id="0/0", location="In[1]:3", graph_break_reason="print"
    )
    rest = replace(GRAPH, function="forward (resumed)", compile_id="1/0", location="In[1]:5")
    other = replace(GRAPH, function="forward (resumed)", compile_id="2/0", location="module.py:5")

    (why,) = explain([broken], [broken, rest, other])

    assert why.cost.startswith("Net.forward fell into 2 graphs")


def test_a_graph_that_a_stranger_has_signed_ends_in_trusting_them() -> None:
    strange = replace(GRAPH, reason="not used: it is in a.nbcache, signed by somebody whom you do not trust")
    assert Why(strange).action == "trust who signed it: %nbcache trust"


def test_all_of_it_is_data() -> None:
    found = Explanation("k", (Difference("constant lr", "1", "2", "In[1]:3"),))
    data = Why(replace(GRAPH, explanation=found)).to_json()
    assert data["nearest"] == "k" and data["fell_into"] == 1
    assert data["differences"] == [{"what": "constant lr", "before": "1", "now": "2", "where": "In[1]:3"}]
    assert data["action"].startswith("make it a tensor")
