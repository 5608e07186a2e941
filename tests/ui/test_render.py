import re
import time
from dataclasses import replace

import pytest

from nbcache.core.model import Direction, Level, Outcome
from nbcache.core.reports import Activity, Cell, CellReport, GraphRecord
from nbcache.core.text import NOTHING, ago, duration, percent, size
from nbcache.kernel.prewarming import Pause, Prewarming, Slice
from nbcache.sharing.live.level import SharedFigures
from nbcache.torch_bridge.cache_settings import CacheSetting
from nbcache.ui.display.render import Rendered
from nbcache.ui.display.reports import (
    render_activity,
    render_checks,
    render_report,
    render_settings,
    render_status,
)
from nbcache.ui.display.text import WIDTH
from nbcache.ui.display.words import Check, CheckState, StoreFigures
from support.html_page import Page


def graph(outcome=Outcome.HIT, **fields):
    known = {
        "cell": Cell.of("step()", 4),
        "location": "In[3]:5",
        "operators": 124,
        "kernels": 3,
        "key": "fz4hq2mxk7",
        "bytes": {"inductor": 48_213, "cpp_kernel": 1_231_000},
    }
    if outcome is Outcome.HIT:
        known |= {"level": Level.L1, "source": "local store", "saved_seconds": 12.43}
        known |= {"seconds": {"dynamo": 0.21, "load": 0.10, "total": 0.31}}
    elif outcome is Outcome.MISS:
        known |= {"reason": "no entry with this key", "kernels_compiled": 2}
        known |= {"seconds": {"dynamo": 0.4, "aot": 0.3, "inductor": 4.1, "build": 7.6, "total": 12.4}}
    else:
        known |= {"reason": "mkldnn tensors unpickleable", "seconds": {"inductor": 2.1, "total": 2.1}}
    name = {"function": "train_step", "compile_id": "0/1", "direction": Direction.FORWARD, "outcome": outcome}
    return GraphRecord(**(name | known | fields))


def report(*graphs, notices=()):
    return CellReport(Cell.of("step()", 4), graphs, 15.0, notices)


def warm(name="import torch", state="done", steps=(0.4, 0.2)):
    """Return prewarming whose slices took these seconds, the longest named `name`."""
    now = [0.0]

    def slices():
        for seconds in steps if state == "done" else steps[:1]:
            yield Slice(name if seconds == max(steps) else "short", lambda s=seconds: now.append(now[-1] + s))
        if state == "running":
            yield Pause.SHORT

    prewarming = Prewarming(slices, lambda *_: None, clock=lambda: now[-1])
    while prewarming.step() is None:
        pass
    return prewarming


def report_text(*arguments, **options):
    return render_report(*arguments, **options).text


def report_html(*arguments, **options):
    return render_report(*arguments, **options).html


MIXED = report(
    *[graph(compile_id=f"{i}/0") for i in range(5)],
    graph(Outcome.MISS, function="<lambda>", recompile_reason="tensor 'x' size mismatch at index 0"),
    notices=("redis://host/0 does not answer",),
)


def test_durations_have_the_precision_that_people_want():
    seconds = (0, 0.0001, 0.003, 0.00996, 0.31, 0.996, 12.44, 59.96, 125, 3720, -0.31)
    texts = "0.000 s|<0.001 s|0.003 s|0.01 s|0.31 s|1.0 s|12.4 s|1 min 00 s|2 min 05 s|1 h 02 min|-0.31 s"
    assert "|".join(map(duration, seconds)) == texts


def test_what_happened_is_said_to_be_so_long_ago():
    seconds = (-5.0, 0.9, 23.2, 300.0, 3 * 3600.0 + 59, 47 * 3600.0, 4.9 * 86400)  # -5: another's clock
    texts = "just now|just now|23 s ago|5 min ago|3 h ago|47 h ago|4 days ago"
    assert "|".join(map(ago, seconds)) == texts


def test_sizes_are_powers_of_a_thousand():
    counts = (0, 999, 1_200_000, 12_300, 999_900, 2 * 10**12)
    assert "|".join(map(size, counts)) == "0 B|999 B|1.2 MB|12 kB|1.0 MB|2.0 TB"


def test_a_share_is_whole_only_when_all_of_it_is_there():
    shares = [percent(199, 200), percent(200, 200), percent(1, 1000), percent(0, 3)]
    assert shares == ["99 %", "100 %", "<1 %", "0 %"]


def test_the_total_line_comes_first_and_names_hits_of_all_graphs():
    first = "nbcache · 6 graphs · 5 of 6 hits (83 %) · 14.0 s compiling · 1 min 02 s saved"
    assert report_text(MIXED).startswith(first)
    assert Page(report_html(MIXED)).text.startswith(first)


def test_a_total_line_that_is_too_wide_breaks_between_its_parts():
    assert report_text(MIXED).splitlines()[1] == "  stored for next time (saves about 12.0 s)"


def test_a_bypassed_graph_counts_as_not_hit():
    assert "1 of 2 hits (50 %) · 1 bypassed" in report_text(report(graph(), graph(Outcome.BYPASS)))


def test_waiting_for_another_kernel_is_called_waiting_and_not_loading():
    waited = report(graph(Outcome.HIT, seconds={"wait": 8.0, "load": 0.25, "total": 8.25}))
    for text in (report_text(waited), Page(report_html(waited)).text):
        assert (
            "1 of 1 graph reused in 0.25 s instead of about 12.7 s · 8.0 s waiting for another kernel" in text
        )


def test_the_live_line_says_waiting_where_a_colleague_compiles():
    now = Activity("f", "0/0", "wait", 3.0, 0, compiled_by="ada@gpu-3", compiled_since=time.time() - 40)
    assert render_activity(now).text == "nbcache: waiting for f 0/0 · ada@gpu-3 is compiling this, 40.0 s"


def test_what_torch_found_in_its_own_folder_is_not_said_to_be_saved_by_nbcache():
    own = graph(Outcome.HIT, level=Level.L0, source="torch's cache folder", saved_seconds=7.0)
    for text in (report_text(report(own)), Page(report_html(report(own))).text):
        assert "reused in 0.31 s instead of about 7.3 s · 7.0 s saved by torch's own folder" in text
        assert "7.0 s (torch)" in text
    both = report_text(report(own, graph(Outcome.HIT)))
    assert (
        "2 of 2 graphs reused in 0.62 s instead of about 20.1 s · 7.0 s saved by torch's own folder" in both
    )


def test_a_cell_that_only_hits_says_what_it_took_and_what_it_takes_cold():
    text = report_text(report(graph()))
    assert "1 of 1 graph reused in 0.31 s instead of about 12.7 s" in text
    assert "compiling" not in text and "next time" not in text


def test_a_hit_says_what_it_had_to_do_all_the_same_and_not_that_its_trace_fits():
    fits = "not traced: 8 guards and 5 facts hold"
    assert "note:" not in report_text(report(graph(reason=fits)))
    costly = report_text(report(graph(reason=f"3 of 4 kernels compiled again; {fits}")))
    assert costly.splitlines()[-1] == "    note: 3 of 4 kernels compiled again"


def test_a_cell_that_only_misses_says_what_the_next_run_saves_without_tracing_which_stays():
    missed = report(graph(Outcome.MISS))
    assert "stored for next time (saves about 12.0 s)" in report_text(missed)
    assert "saved" not in report_text(missed).splitlines()[0]
    assert "stored" not in report_text(missed, stored=False)
    raised, not_saved = "though the cell raised", "--no-save"
    for show in (report_text, report_html):
        assert f"nothing stored: {not_saved}" in show(missed, stored=False, why=not_saved)
        assert f"stored for next time, {raised} (saves" in show(missed, why=raised)
        assert "stored" not in show(report(graph()), stored=False, why=not_saved)  # it only hit
    assert "stored for next time" not in report_html(missed, stored=False)


def test_text_columns_are_aligned_under_their_headers():
    lines = [
        line
        for line in report_text(MIXED).splitlines()
        if ("  " in line.strip() and "/" in line) or "kernels" in line
    ]
    head, rows = lines[0], lines[1:]
    assert len(rows) == 6
    for header in ("graph", "outcome", "from", "kernels"):
        start = head.index(header)
        assert all(row[start - 1] == " " and row[start] != " " for row in rows)
    for header in ("time", "saved", "ops"):
        end = head.index(header) + len(header)
        assert all(row[end - 1] != " " and row[end] == " " for row in rows)


def test_text_says_every_reason_on_indented_lines_beneath_its_row():
    lines = report_text(MIXED).splitlines()
    row = next(i for i, line in enumerate(lines) if "<lambda>" in line)
    assert lines[row + 1] == "    miss: no entry with this key"
    assert lines[row + 2] == "    recompile: tensor 'x' size mismatch at index 0"
    assert lines[-1] == "  ! redis://host/0 does not answer"


@pytest.mark.parametrize(
    ("outcome", "seconds", "said"),
    [
        (Outcome.HIT, 1.6, "waited: 1.6 s for another kernel, which compiled it"),
        (Outcome.MISS, 5.0, "waited: 5.0 s for another kernel, in vain"),
        (Outcome.MISS, 0.002, None),  # who asked whether there was anybody to wait for
    ],
)
def test_a_report_tells_for_how_long_a_graph_waited_for_another_kernel(outcome, seconds, said):
    waited = report(graph(outcome, seconds={"wait": seconds, "total": 8.0}))
    for text in (report_text(waited), Page(report_html(waited)).text):
        assert (said in text) if said else ("waited" not in text)


def test_text_stays_within_its_width_and_nearly_ascii_however_long_the_names():
    long = graph(
        Outcome.MISS,
        function="Transformer.forward" * 9,
        location="/a/very/long/path/" * 5 + "model.py:1234",
        source="redis://a-host-with-a-long-name.example/0",
        level=Level.L3,
        reason="it\nsays\x1b[31m much " * 90,
        graph_break_reason="x" * 300,
        saved_seconds=400.0,
        seconds={"total": 400.0},
    )
    stores = [StoreFigures("redis://" + "h" * 150, 1, 1, 10)]
    rows = [CacheSetting("name" * 8, "/path" * 30, "origin" * 6, "words " * 60, "note " * 40)]
    for text in (
        report_text(report(long, graph())),
        render_status([report(long, notices=("y " * 200,))], stores, warm()).text,
    ):
        assert all(len(line) <= WIDTH for line in text.splitlines())
        assert not re.sub(rf"[\n -~{NOTHING}·]", "", text)
        assert "\x1b" not in text
    assert all(len(line) <= WIDTH for line in render_settings(rows).text.splitlines()[2:])


def test_the_location_goes_before_the_function_is_cut():
    assert "train_step model.py:12 " in report_text(report(graph(location="/home/me/project/model.py:12")))
    crowded = graph(location="/p/" + "m" * 60 + ".py:12")
    assert re.search(r"train_step +0/1", report_text(report(crowded)))


def test_the_html_table_has_a_row_for_each_graph():
    head, *rows = Page(report_html(MIXED)).rows
    assert head == ["function", "graph", "outcome", "from", "time", "saved", "ops", "kernels", "reason"]
    assert rows[0] == [
        "train_step In[3]:5",
        "0/0 forward",
        "hit",
        "L1 local store",
        "0.31 s",
        "12.4 s",
        "124",
        "3",
        "",
    ]
    assert rows[5][0] == "<lambda> In[3]:5"
    assert rows[5][3:8] == ["–", "12.4 s", "–", "124", "3 (2 compiled)"]


def test_there_is_a_reason_column_only_where_there_are_reasons():
    assert "reason" not in Page(report_html(report(graph()))).rows[0]


def test_a_long_reason_is_cut_in_the_table_and_whole_in_its_tooltip_and_details():
    reason = "inductor_config.max_autotune was False, is True; " * 4
    page = Page(report_html(report(graph(Outcome.MISS, reason=reason))))
    assert page.rows[1][-1].endswith("...") and len(page.rows[1][-1]) <= 106
    assert reason.strip() in page.titles
    assert reason in page.text


def test_a_miss_that_is_a_recompile_says_both_whole_in_the_table():
    guard = "1/0: tensor 'context' size mismatch at index 0. expected 22, actual 23"
    missed = graph(
        Outcome.MISS, reason="compiled for the first time in this notebook", recompile_reason=guard
    )
    said = Page(report_html(report(missed))).rows[1][-1]
    assert said == f"miss: compiled for the first time in this notebookrecompile: {guard}"  # two lines


def test_details_are_folded_and_hold_phases_bytes_key_and_reasons():
    page = Page(report_html(report(graph(Outcome.MISS, graph_break_reason="call to print\n  Hint: move it"))))
    assert page.folded == 1
    assert "Dynamo 0.40 s · AOTAutograd 0.30 s · Inductor 4.1 s · kernel build 7.6 s" in page.text
    assert "inductor 48 kB · cpp_kernel 1.2 MB" in page.text
    assert "fz4hq2mxk7" in page.text
    assert "call to print\n  Hint: move it" in page.text


def test_outcomes_are_told_apart_by_colour():
    badges = Page(report_html(report(*map(graph, Outcome)))).badges
    assert badges["bypass"] == badges["disabled"]
    assert len({badges["hit"], badges["miss"], badges["bypass"]}) == 3


def test_nothing_that_users_control_becomes_markup():
    evil = """<script>alert("1")</script><img src=x onerror='alert(2)'>&amp;"""
    record = graph(Outcome.MISS)
    strings = ["function", "compile_id", "location", "source", "reason", "key"]
    strings += ["recompile_reason", "graph_break_reason"]
    record = replace(
        record, **dict.fromkeys(strings, evil), seconds={evil: 1.0, "total": 1.0}, bytes={evil: 1}
    )
    evil_report = report(record, notices=(evil,))
    stores = [StoreFigures(evil, 1, 1)]
    activity = Activity(evil, evil, evil, 1.0, 1)
    for html in (
        report_html(evil_report),
        render_status([evil_report], stores, warm(evil)).html,
        render_settings([CacheSetting(evil, evil, evil, evil, evil)]).html,
        render_activity(activity).html,
    ):
        assert evil[:20] in Page(html).text  # and Page fails on tags and attributes that are not ours


def test_a_cell_that_compiled_nothing_says_so_and_shows_its_notices():
    quiet = report(notices=("a level is off",))
    assert report_text(quiet) == "nbcache · nothing compiled\n  ! a level is off"
    assert "a level is off" in Page(report_html(quiet)).text


def test_status_counts_the_session_then_ranks_reasons_then_lists_cells():
    stale, rare = graph(Outcome.MISS), graph(Outcome.MISS, reason="rare")
    slow = graph(Outcome.MISS, reason="rare but slow", seconds={"total": 100.0})
    reports = [report(stale, rare), report(stale, slow), MIXED, MIXED, report(notices=("once",))]
    stores = [StoreFigures("local store", 132, 12_300_000, 2_000_000_000), StoreFigures("shared", 1, 640)]
    text = render_status(reports, stores, warm()).text
    first = text.splitlines()[0]
    assert first.startswith("nbcache session · 16 graphs in 4 cell runs · 10 of 16 hits (62 %)")
    assert "prewarmed · 0.60 s of idle time in 2 slices · longest 0.40 s (import torch)" in text
    assert "local store · 132 entries · 12 MB of 2.0 GB (1 %)" in text and "shared · 1 entry · 640 B" in text
    assert text.count("redis://host/0 does not answer") == 1
    order = ["miss: rare but slow", "miss: no entry with this key", "miss: rare\n", "In[4] · 2 graphs"]
    assert sorted(order, key=text.index) == order
    assert re.search(r"4 +49.6 s +miss: no entry", text)
    page = Page(render_status(reports, stores, warm()).html)
    assert page.text.startswith(first) and page.text.count("In[4] ·") == 4
    assert [row for row in page.rows if row[0] == "4"] == [["4", "49.6 s", "miss: no entry with this key"]]


def test_status_says_how_far_prewarming_is():
    assert "prewarming (running) · 0.40 s" in render_status([], (), warm(state="running")).text
    assert "prewarm" not in render_status([], (), warm(steps=())).text
    status = render_status([], (), warm())
    assert status.data["prewarm"]["slices"][0] == {"name": "import torch", "seconds": pytest.approx(0.4)}


def test_status_says_that_the_kernel_was_forked_with_imports_done():
    forked = render_status([], (), warm(steps=()), nursery=4711)
    assert "forked from nursery 4711 · imports were done before" in forked.text
    assert "forked from nursery 4711" in Page(forked.html).text
    assert forked.data["nursery"] == 4711
    ordinary = render_status([], (), warm(steps=()))
    assert "forked" not in ordinary.text and ordinary.data["nursery"] is None


def test_status_says_what_is_shared_and_why_not():
    shared = SharedFigures("redis://host/0", 12, 3, 4_500, None)
    status = render_status([], (), warm(), shared)
    assert "redis://host/0 · 12 found · 3 published · 4.5 kB to be written" in status.text
    assert "12 found" in Page(status.html).text
    assert status.data["shared"]["published"] == 3
    off = replace(shared, waiting=0, off="Redis cannot be reached")
    assert "3 published · off for now: Redis cannot be reached" in render_status([], (), warm(), off).text
    assert render_status([], (), warm()).data["shared"] is None


def test_status_unfolds_few_cells_and_folds_many():
    assert (
        Page(render_status([MIXED] * 3, (), warm()).html).folded
        < Page(render_status([MIXED] * 4, (), warm()).html).folded - 4
    )


def test_status_of_a_fresh_session_divides_by_nothing():
    assert render_status([], (), warm(steps=())).text == "nbcache session · nothing compiled"


def test_a_setting_without_a_value_shows_a_dash():
    rows = [CacheSetting("notebook", "", "default", "path of this notebook")]
    assert (
        render_settings(rows).text.splitlines()[1]
        == f"  notebook  {NOTHING}      default  path of this notebook"
    )
    assert Page(render_settings(rows).html).rows[1][1] == NOTHING


def test_settings_of_torchs_caches_are_a_block_of_their_own():
    ours = [CacheSetting("save", "on", "default", "Store what is compiled.")]
    torchs = [CacheSetting("TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE", "off", "default", "On a Redis.", "no")]
    rendered = render_settings(ours, torchs)
    assert rendered.text.splitlines() == [
        "  setting  value  from     meaning",
        "  save     on     default  Store what is compiled.",
        "",
        "torch's caches",
        "  setting                              value  from     meaning",
        "  TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE  off    default  On a Redis.",
        "                                                       ! no",
    ]
    rows = Page(rendered.html).rows
    assert [row[0] for row in rows] == ["setting", "save", "setting", torchs[0].name]
    assert [rows[1][3], rows[3][3]] == ["Store what is compiled.", "On a Redis.no"]
    assert [row["name"] for row in rendered.data["torch"]] == [torchs[0].name]


CHECKS = [
    Check("torch", CheckState.OK, "2.13.0, imported"),
    Check("C++ compiler", CheckState.NOTE, "g++ is not there", "install one, or set CXX"),
    Check("disk", CheckState.PROBLEM, "3 MB free for <b>x</b>", "free some"),
]


def test_checks_are_counted_and_each_has_its_next_step_beneath_it():
    assert render_checks(CHECKS).text.splitlines() == [
        "nbcache doctor · 3 checks · 1 problem · 1 note",
        "  check         state    found",
        "  torch         ok       2.13.0, imported",
        "  C++ compiler  note     g++ is not there",
        "                         next: install one, or set CXX",
        "  disk          problem  3 MB free for <b>x</b>",
        "                         next: free some",
    ]
    assert render_checks(CHECKS[:1]).text.splitlines()[0] == "nbcache doctor · 1 check · all in order"
    page = Page(render_checks(CHECKS).html)
    assert page.rows[2:] == [
        ["C++ compiler", "note", "g++ is not therenext: install one, or set CXX"],
        ["disk", "problem", "3 MB free for <b>x</b>next: free some"],
    ]
    assert len(set(page.badges.values())) == 3


def test_long_checks_stay_within_the_width_and_break_no_path():
    path = "/home/somebody-with-a-name/with-a-folder/with-a-folder"
    evil = "x\x1b[2J\nfaked"
    text = render_checks(
        [Check("temp folder", CheckState.NOTE, f"{path} {evil} " * 4, f"remove {path}")]
    ).text
    assert all(len(line) <= WIDTH and line.isprintable() for line in text.splitlines())
    assert text.count(path) == 5
    assert not any(line.startswith("faked") for line in text.splitlines())


FIRST = "a first compile takes its time"
BAR = "43%|####------|"


@pytest.mark.parametrize(
    ("activity", "text"),
    [
        (
            Activity("train_step", "0/1", "build", 3.21, 2),
            "compiling train_step 0/1 · building kernels · 3.2 s · 2 graphs done",
        ),
        (Activity("f", "0/0", "dynamo", 9.6, 1), "compiling f 0/0 · tracing · 9.6 s · 1 graph done"),
        (
            Activity("f", "0/0", "new phase", 65.0, 0),
            f"compiling f 0/0 · new phase · 1 min 05 s · {FIRST}",
        ),
        (
            Activity("f", "0/0", "build", 6.0, 1, usual_seconds=14.0, usual_graphs=3),
            f"compiling f 0/0 · building kernels · {BAR} 6.0 s of about 14 s · 1 graph of about 3 done",
        ),
        (
            Activity("f", "0/0", "inductor", 20.0, 0, usual_seconds=14.0),
            "compiling f 0/0 · generating code · 99%|##########| 20 s, more than the usual 14 s",
        ),
        (Activity("12 of 40 artifacts", "", "restoring", 0.6, 0), "restoring 12 of 40 artifacts · 0.6 s"),
    ],
)
def test_the_live_line_says_what_is_going_on(activity, text):
    assert render_activity(activity).text == "nbcache: " + text
    assert Page(render_activity(activity).html).text == "nbcache · " + text.replace(
        BAR, "43%|████░░░░░░|"
    ).replace("#", "█")


def test_rendered_shows_as_text_html_and_json_in_ipython():
    from IPython.core.formatters import DisplayFormatter

    bundle, _ = DisplayFormatter().format(render_report(MIXED))
    assert bundle["text/plain"] == report_text(MIXED)
    assert bundle["text/html"] == report_html(MIXED)
    assert bundle["application/vnd.nbcache.report+json"] == MIXED.to_json()
    assert str(render_report(MIXED)) == report_text(MIXED)


def test_json_that_is_large_is_not_put_into_the_notebook():
    assert set(render_report(report(*[graph()] * 100)).bundle()) == {"text/plain", "text/html"}


def test_every_kind_of_json_has_a_mime_type_of_its_own():
    status, settings = render_status([MIXED], (), warm()), render_settings([CacheSetting("a", "b", "c", "d")])
    checks = render_checks(CHECKS)
    assert status.data["cells"] == [MIXED.to_json()]
    assert settings.data["settings"][0]["origin"] == "c"
    assert [check["next_step"] for check in checks.data["checks"]][:2] == [None, "install one, or set CXX"]
    assert len({status.mime, settings.mime, checks.mime, Rendered("", "").mime}) == 4
