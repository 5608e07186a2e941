"""What is recommended, by what was measured; and what of it is shown."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from nbcache.kernel.explain.diagnosis import (
    Agreement,
    Break,
    Comparison,
    Diagnosis,
    Recompile,
    Resized,
    Timing,
    counted_calls,
    is_faster,
    recommendation,
    times,
)
from nbcache.ui.ipython.diagnose_magic import per_call, render_diagnosis


def timing(milliseconds: float, spread: float = 0.02) -> Timing:
    """Return calls that take so long, give or take a share."""
    return Timing(tuple(milliseconds * 1e-3 * (1 + spread * step) for step in (-2, -1, 0, 1, 2)))


DIAGNOSIS = Diagnosis("model(x)", eager=timing(10), compile_seconds=20.0, graphs=1, size=64)
APART = Comparison(
    Agreement.DIFFERENT, "output['logits']", "Greatest absolute difference: 0.25 at index (3, 17)"
)
PRINTS = Break("Failed to trace builtin operator: print (In[3]:4)", "print after the compiled function")
RECOMPILED = Resized(
    128, 2.5, ("tensor 'x' size mismatch at index 0. expected 64, actual 128",), "dynamic=True"
)

RESTLESS = Recompile("step", 7, False, "G['calls'] == 7", "pass it as a tensor")


def compiled(milliseconds: float, **more: Any) -> Diagnosis:
    """Return the diagnosis of a call that takes 10 ms eager, and so many compiled."""
    return replace(DIAGNOSIS, compiled=timing(milliseconds), **more)


def test_what_is_clearly_faster_is_worth_its_compiling_and_says_when_it_has_paid() -> None:
    assert recommendation(compiled(5)) == (
        "compile it with mode='default': 2.0 x faster, 20.0 s to compile, pays after 4,000 calls"
    )


def test_dynamic_sizes_are_recommended_only_where_they_spare_a_recompile() -> None:
    for guard in ("2 <= x.size()[0]", "tensor 'x' size mismatch at index 0. expected 2, actual 1", "k == 2"):
        found = compiled(5, resized=(RECOMPILED, Resized(1, 2.5, (guard,))))
        assert "dynamic=True spares 1 recompile (2.5 s)" in recommendation(found)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (compiled(20), "do not compile it in this form: 0.50 x, so it gets slower"),
        (compiled(10), "do not compile it in this form: 1.0 x, so there is nothing to gain"),
        (
            replace(compiled(7), eager=timing(10, spread=0.4)),
            "measure it with more --runs: 1.4 x, but single calls vary more than that",
        ),
        (
            compiled(20, breaks=(PRINTS,), graphs=2),
            "fix the graph break and measure again: print after the compiled function; compiled now it is",
        ),
        (
            compiled(5, breaks=(PRINTS, PRINTS), graphs=3),
            "the first of 2 graph breaks may cost more than that: print after the compiled function",
        ),
        (
            compiled(5, resized=(RECOMPILED, Resized(65))),
            "pays after 4,000 calls; where sizes change, dynamic=True spares 1 recompile (2.5 s)",
        ),
        (
            compiled(5, comparison=APART),
            "find out why results differ before you use the compiled function: output['logits']: Greatest",
        ),
        (
            replace(DIAGNOSIS, failure="BackendCompilerFailed: no"),
            "do not compile it in this form: torch.compile fails: BackendCompilerFailed: no",
        ),
        (
            compiled(5, recompiles=(RESTLESS, replace(RESTLESS, settled=True))),
            "keep step from being compiled again at each call: G['calls'] == 7: pass it as a tensor",
        ),
        (
            compiled(5, recompiles=(replace(RESTLESS, settled=True),)),
            "compile it with mode='default'",
        ),
        (compiled(5, graphs=0), "it has no graph that torch.compile could compile"),
    ],
)
def test_there_is_one_recommendation_for_what_was_found(found: Diagnosis, said: str) -> None:
    assert said in recommendation(found)


def test_what_a_cache_had_counts_as_if_it_were_compiled() -> None:
    restored = compiled(5, compile_seconds=1.0, saved_seconds=19.0)

    assert restored.pays_after == 4000
    assert "20.0 s to compile, pays after 4,000 calls" in recommendation(restored)
    assert compiled(20).pays_after is None


def test_numbers_read_as_people_write_them() -> None:
    assert [times(ratio) for ratio in (0.002, 0.5, 0.996, 1.94, 24.4)] == [
        "under 0.01 x",
        "0.50 x",
        "1.0 x",
        "1.9 x",
        "24 x",
    ]
    assert [counted_calls(calls) for calls in (1, 37, 1312, 98_765)] == [
        "1 call",
        "37 calls",
        "1,300 calls",
        "99,000 calls",
    ]
    told = [per_call(seconds) for seconds in (42.4e-6, 0.00124, 0.0312, 0.312, 2.1)]
    assert told == ["42 us", "1.24 ms", "31.2 ms", "312 ms", "2.1 s"]
    busy = (0.5, 0.5)
    assert is_faster(Timing((*timing(5).seconds, *busy)), Timing((*timing(10).seconds, *busy)))
    assert is_faster(timing(5), timing(10)) and not is_faster(timing(9.8), timing(10))
    assert Timing((0.5,)).spread == (0.5, 0.5)


def test_the_report_has_a_row_for_eager_and_compiled_and_says_what_was_found() -> None:
    found = compiled(
        5,
        comparison=Comparison(Agreement.USUAL, "output", "Greatest absolute difference: 1e-07"),
        breaks=(PRINTS,),
        graphs=2,
        resized=(RECOMPILED, Resized(65), Resized(32, refused="RuntimeError: shape '[64]' is invalid")),
        notes=("`batches` (generator) cannot be copied",),
    )
    rendered = render_diagnosis(found)
    text = rendered.text

    assert text.splitlines()[0] == "nbcache diagnose · model(x) · cpu · 5 measurements"
    assert re.search(r"^  eager +10\.0 ms +9\.80 ms to 10\.2 ms +–", text, re.MULTILINE)
    assert re.search(r"^  default +5\.00 ms .* 2\.0 x +20\.0 s +4,000 calls$", text, re.MULTILINE)
    assert "graph breaks: 1 (2 graphs)" in text and "fix: print after the compiled function" in text
    assert "sizes other than 64: 1 of 2 recompiled" in text
    assert "128: recompiled in 2.5 s: tensor 'x' size mismatch" in text and "65: runs as it is" in text
    assert "32: refused, also eager: RuntimeError: shape" in text
    assert "results: as usual: within what torch.testing allows; output: Greatest absolute diff" in text
    assert "\n      fix: print" in text and "\n  next: compile it with mode='default': 2.0 x faster" in text
    assert all(len(line) <= 110 for line in text.splitlines())
    assert not {letter for letter in text if not letter.isascii()} - {"–", "·"}
    assert "<script" not in rendered.html and "default" in rendered.html
    assert rendered.data is not None
    assert json.loads(json.dumps(rendered.data))["recommendation"] in " ".join(text.split())


def test_a_failure_has_a_row_and_its_error() -> None:
    text = render_diagnosis(replace(DIAGNOSIS, mode="max-autotune", failure="RuntimeError: no")).text

    assert re.search(r"^  max-autotune +failed +–", text, re.MULTILINE)
    assert "max-autotune failed: RuntimeError: no" in text


def test_gpu_memory_has_a_column_where_there_is_a_gpu() -> None:
    found = compiled(5, peak_bytes=3_000_000, eager_peak_bytes=12_000_000)
    rows = render_diagnosis(found).text.splitlines()

    assert rows[1].endswith("GPU memory") and rows[2].endswith("12 MB") and rows[3].endswith("3.0 MB")
