"""What panels show, without widgets and without torch; and panels in a real shell of a fresh interpreter."""

from __future__ import annotations

import json
import re
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from nbcache.core.key import components
from nbcache.core.model import ArtifactRef, Direction, Environment, GraphSummary, Level, Manifest, Outcome
from nbcache.core.reports import Activity, Cell, Difference, Explanation, GraphContents, GraphRecord
from nbcache.core.trust import spelled
from nbcache.explain.plan import Plan
from nbcache.explain.timeline import CellTimes, KernelRun, Lost, Timeline
from nbcache.explain.why import explain
from nbcache.ui.display.code import code_html
from nbcache.ui.display.graph import detail_html, differences_html, phase_bars, render_graph
from nbcache.ui.display.rows import SettingRow, StoreFigures
from nbcache.ui.panels import pages, timeline
from nbcache.ui.panels.refresh import Refresher
from nbcache.ui.panels.saved import SECTIONS, render_panel
from nbcache.ui.panels.values import Facts, Now, Order, Space, Stranger, graph_page, machine_parts, spaces
from support.front_door import RunPython
from support.people import Person, key_of

HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m\u202e"
HERE = Environment(components({"torch.version": "2.13.0", "device": "cpu", "cpu.capability": "AVX512"}))


def graph(function: str = "step", count: int = 3, **more: Any) -> GraphRecord:
    known: dict[str, Any] = {
        "direction": Direction.FORWARD,
        "outcome": Outcome.MISS,
        "compile_id": "0/0",
        "cell": Cell.of(f"{function} {count}", count),
        "seconds": {"inductor": 1.5, "total": 2.0},
    }
    return GraphRecord(function=function, **{**known, **more})


# --- which graphs ---------------------------------------------------------------------------------


def test_the_newest_cell_stands_first_and_its_graphs_as_they_compiled() -> None:
    one, two = Cell.of("a", 1), Cell.of("b", 2)
    graphs = [graph("f", cell=one), graph("g", cell=one), graph("h", cell=two), graph("i", cell=two)]
    page = graph_page(graphs)
    assert [(place, each.function) for place, each in page.rows] == [(2, "h"), (3, "i"), (0, "f"), (1, "g")]


def test_graphs_are_filtered_sorted_and_paged() -> None:
    graphs = [
        graph(
            f"f{i:02}",
            outcome=Outcome.HIT if i % 2 else Outcome.MISS,
            seconds={"total": float(i)},
            saved_seconds=float(-i),
        )
        for i in range(25)
    ]
    hits = graph_page(graphs, Outcome.HIT, Order.SLOWEST, page=1)
    assert (hits.found, hits.pages, hits.page) == (12, 2, 1)
    assert [each.function for _, each in hits.rows] == ["f03", "f01"]
    assert (hits.counts[Outcome.HIT], hits.counts[Outcome.MISS]) == (12, 13)
    assert graph_page(graphs, page=99).page == 2
    assert graph_page([], page=3).pages == 1
    assert graph_page(graphs, None, Order.SAVED).rows[0][1].function == "f00"
    assert graph_page([graph("b"), graph("a")], None, Order.FUNCTION).rows[0][1].function == "a"


def test_of_two_thousand_graphs_a_page_is_drawn_and_few_are_saved() -> None:
    graphs = [graph(f"f{i}", count=i // 10) for i in range(2000)]
    page = graph_page(graphs)
    drawn = [
        pages.graph_html(each) + pages.cell_html(page, i, graphs) for i, (_, each) in enumerate(page.rows)
    ]
    saved = render_panel(Now(graphs), Facts())
    assert len(drawn) == 10 and len(saved.html) < 100_000
    assert "and 1980 graphs before" in saved.text


# --- in words -------------------------------------------------------------------------------------


def test_what_goes_on_is_told_with_phase_and_time_and_that_buttons_wait() -> None:
    activity = Activity("step", "0/1", "inductor", 2.5, 1)
    now = Now((), activity, "In[5]", 3.04)
    assert pages.activity_words(now)[0] == "In[5] runs, 3.0 s"
    html = pages.live_html(now)
    assert "compiling step 0/1" in html and "generating code" in html and "acts at its end" in html
    assert "no cell runs" in pages.live_html(Now()) and "acts at" not in pages.live_html(Now())


def test_a_graph_opens_to_why_phases_artifacts_and_key() -> None:
    missed = graph(reason="not stored", key="fabc", bytes={"inductor": 2048}, location="In[3]:1")
    html = detail_html(explain([missed], [missed])[0])
    for said in ("not stored", "Inductor 1.5 s", "inductor 2.0 kB", "fabc", "In[3]:1", "next:"):
        assert said in html


def test_phases_have_bars_and_words_and_the_longest_has_the_highest() -> None:
    bars = phase_bars({"dynamo": 2.0, "aot": 1.0, "build": 8.0, "load": 0.01, "total": 11.01})
    assert bars == "dynamo \N{LOWER ONE QUARTER BLOCK} aot \N{LOWER ONE EIGHTH BLOCK} build \N{FULL BLOCK}"
    assert phase_bars({}) == phase_bars({"total": 1.0}) == ""
    assert "inductor \N{FULL BLOCK}" in pages.graph_html(graph())


def test_all_that_differs_is_shown_before_and_now() -> None:
    differs = Explanation(
        "fnear", (Difference("lr", "1e-3", "3e-4", "In[4]:7"), Difference("input 0", "", ""))
    )
    html = differences_html(explain([graph(explanation=differs)], [])[0])
    for said in ("lr", "1e-3", "3e-4", "In[4]:7", "input 0", "fnear", "before", "now"):
        assert said in html
    assert differences_html(explain([graph()], [])[0]) == ""


def test_guards_and_code_are_folded_and_where_there_are_none_it_says_why() -> None:
    known = explain([graph(code_path="/cache/x.py")], [])[0]
    html = detail_html(known, GraphContents(("L['x'] is None",), "", "def call(args):\n    return 1\n", ""))
    assert html.count("<details") == 2 and "<details open" not in html
    assert "L[&#x27;x&#x27;] is None" in html and "/cache/x.py" in html and "2 lines" in html
    without = detail_html(known, GraphContents((), "it is gone", "", "no file"))
    assert "it is gone" in without and "no file" in without and "<details" not in without


def test_code_has_colours_as_inline_styles_and_is_cut_where_it_is_long() -> None:
    html = code_html("def call(args):  # <b>\n    return 'text'\n", "/cache/x.py")
    assert re.search(r'<span style="color:[^"]+">def</span>', html) and "&lt;b&gt;" in html
    assert "class=" not in html and "2 lines" in html
    long = code_html("x = 1\n" * 5000, "/cache/x.py")
    assert "the first 400 of 5000 lines" in long and "/cache/x.py" in long and len(long) < 100_000


def test_a_graph_is_shown_whole_as_text_and_as_json() -> None:
    known = explain([graph(key="fabc", code_path="/cache/x.py")], [])[0]
    shown = render_graph(known, GraphContents(("L['x'] is None",), "", "def call(): pass", ""))
    assert "L['x'] is None" in shown.text and "def call(): pass" in shown.text and "key: fabc" in shown.text
    data = dict(shown.data or {})
    assert (
        data["guards"] == ["L['x'] is None"]
        and data["code"] == "def call(): pass"
        and data["no_code"] is None
    )
    assert data["code_path"] == "/cache/x.py" and data["graph"]["key"] == "fabc"


TIMES = Timeline(
    (
        CellTimes(
            "In[3]", ("train",), {"load": 0.5, "outside": 0.5}, {"inductor": 9.5, "outside": 0.5}, None, True
        ),
        CellTimes("In[4]", ("step",), {"dynamo": 1.0, "build": 3.0}, None, {"load": 0.2}, False),
    ),
    (Lost("step", "miss: lr differs", 2, 8.0),),
    (KernelRun(time.time(), 3, 2, 4.5, True), KernelRun(time.time() - 7200, 3, 0, 20.0, False)),
)


def test_the_timeline_has_bars_on_one_scale_and_says_in_words_what_they_say() -> None:
    html = timeline.cells_html(TIMES)
    assert html.count('role="img"') == 5  # the scale, and two bars of each cell
    assert 'width="95.00%"' in html and 'width="30.00%"' in html  # of the longest bar, 10 s
    for said in ("cold", "restored", "Inductor 9.5 s", "kernel build 3.0 s", "10.0 s", ">inductor</text>"):
        assert said in html
    assert timeline.cells_words(TIMES) == ["2 cells", "5.0 s now"]
    runs = timeline.runs_html(TIMES)
    assert runs.count("<svg") == 2 and "this one: 2 of 3 graphs hit" in runs and "2 h ago" in runs
    assert timeline.cells_html(Facts().timeline) == timeline.runs_html(Facts().timeline) == ""


def test_a_saved_timeline_has_neither_svg_nor_colours_alone() -> None:
    saved = render_panel(Now(), Facts(timeline=TIMES), ("timeline", "lost", "runs"))
    assert not re.search(r"<(script|style|svg)|display:flex", saved.html)
    assert "Inductor 9.5 s" in saved.html
    for said in ("lr differs", "2 of 3 graphs", "this one"):
        assert said in saved.html and said in saved.text


def test_levels_say_in_words_what_their_bars_say() -> None:
    graphs = [graph(outcome=Outcome.HIT, level=Level.L1, saved_seconds=3.0), graph()]
    assert pages.levels_words(pages.by_level(graphs)) == ["L0 0", "L1 1", "L2 0", "L3 0", "compiled here 1"]
    html = pages.levels_html(pages.by_level(graphs))
    assert "saved 3.0 s" in html and "took 2.0 s" in html and "local store" in html


def test_space_is_told_by_notebook_largest_first_and_each_content_once() -> None:
    def manifest(notebook: str, *sizes: int) -> Manifest:
        refs = tuple(
            ArtifactRef("inductor", f"k{i}", f"{i:064}", size, used=float(i)) for i, size in enumerate(sizes)
        )
        summary = GraphSummary("c", "f", Direction.FORWARD, Outcome.MISS, "k0", 1.0)
        return Manifest(HERE, notebook, refs, (summary,))

    found = spaces([manifest("/a/small.ipynb", 10), manifest("/a/large.ipynb", 10, 500)])
    assert [(each.notebook, each.bytes, each.artifacts) for each in found] == [
        ("/a/large.ipynb", 510, 2),
        ("/a/small.ipynb", 10, 1),
    ]
    found.append(Space("/b/small.ipynb", 1, 1, 1, 1.0))
    facts = Facts(notebook="small.ipynb", identity="/a/small.ipynb", spaces=found)
    html = pages.space_html(facts, now=61.0)
    assert html.index("large.ipynb") < html.index("small.ipynb (this notebook)") and "60 s ago" in html
    assert html.count("(this notebook)") == 1


def test_the_machine_is_told_in_short() -> None:
    assert machine_parts(HERE, [graph(threads=2)]) == ["torch 2.13.0", "CPU AVX512", "2 threads"]
    assert machine_parts(None, []) == []


def test_settings_that_are_not_as_by_default_are_told() -> None:
    rows = [
        SettingRow("save", "off", "%nbcache config", "record"),
        SettingRow("live", "on", "default", "line"),
        SettingRow("dir", "/long/path", "environment, NBCACHE_DIR", "folder"),
    ]
    assert pages.settings_words(Facts(settings=rows)) == ["save=off"]
    assert pages.settings_words(Facts()) == ["all as by default"]


# --- what a saved notebook keeps ------------------------------------------------------------------


def test_a_saved_panel_is_static_html_that_a_sanitizer_leaves_as_it_is() -> None:
    now = Now([graph(), graph("other", 4, outcome=Outcome.HIT, level=Level.L2, source="m.nbcache")])
    facts = Facts(
        notebook="m.ipynb",
        snapshots=["m.nbcache · 12 kB", "m.nbcache: 3 graphs, yours"],
        store=StoreFigures("local store", 3, 1000, 5000),
    )
    saved = render_panel(now, facts, note="run this cell again to have it live")
    assert not re.search(r"<(script|style|svg|link|img|iframe)|\bon\w+=|https?:", saved.html)
    assert "display:flex" not in saved.html and "<details" in saved.html
    for said in ("m.ipynb", "other", "12 kB", "as of", "run this cell again", "not connected"):
        assert said in saved.html and said in saved.text


def test_what_is_not_read_yet_is_not_said_to_be_missing() -> None:
    text = render_panel(Now(), Facts(is_read=False)).text
    assert text.count("being read") == 4
    for wrong in ("cannot", "none is beside", "as by default", "nothing that this notebook"):
        assert wrong not in text


def test_what_a_narrow_column_cuts_is_in_its_tooltip() -> None:
    long = graph("f" * 30, location="/models/a_long_name.py:12")
    assert f'title="{"f" * 30} a_long_name.py:12"' in pages.graph_html(long)


def test_a_part_of_the_panel_has_no_other_part() -> None:
    saved = render_panel(Now([graph()]), Facts(), ("people", "snapshot"))
    assert "snapshot" in saved.html and "SPACE" not in saved.text and "graphs" not in saved.html


def test_names_from_elsewhere_are_shown_as_text() -> None:
    known = graph(
        HOSTILE,
        reason=HOSTILE,
        key=HOSTILE,
        location=HOSTILE,
        recompile_reason=HOSTILE,
        source=HOSTILE,
        code_path=HOSTILE,
        explanation=Explanation(HOSTILE, (Difference(HOSTILE, HOSTILE, HOSTILE, HOSTILE),)),
    )
    facts = Facts(
        paste=[HOSTILE],
        timeline=Timeline(
            (CellTimes(HOSTILE, (HOSTILE,), {"inductor": 1.0}, None, {"load": 0.1}, False),),
            (Lost(HOSTILE, HOSTILE, 1, 1.0),),
            (KernelRun(1.0, 1, 1, 1.0, True),),
        ),
        notebook=HOSTILE,
        machine=[HOSTILE],
        plan=Plan((), 0, gone=(HOSTILE,)),
        plan_notes=[HOSTILE],
        people=[HOSTILE],
        strangers=[Stranger(HOSTILE, HOSTILE, HOSTILE, HOSTILE)],
        snapshots=[HOSTILE, HOSTILE],
        settings=[SettingRow(HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE)],
        spaces=[Space(HOSTILE, 1, 1, 1, 1.0)],
    )
    now = Now([known], Activity(HOSTILE, "0/0", HOSTILE, 1.0, 0), HOSTILE, 1.0, [HOSTILE])
    page = graph_page(now.graphs)
    drawn = [
        pages.head_html(facts),
        pages.live_html(now),
        pages.section_html("GRAPHS", [HOSTILE]),
        pages.said_html([HOSTILE]),
        pages.problem_html(HOSTILE, HOSTILE),
        pages.plan_html(facts),
        pages.graph_html(known),
        pages.cell_html(page, 0, now.graphs),
        detail_html(explain([known], [known])[0], GraphContents((HOSTILE,), "", HOSTILE, "")),
        detail_html(explain([known], [known])[0], GraphContents((), HOSTILE, "", HOSTILE)),
        differences_html(explain([known], [known])[0]),
        *(render_graph(explain([known], [known])[0], GraphContents((HOSTILE,), "", HOSTILE, "")).html,),
        timeline.cells_html(facts.timeline),
        timeline.runs_html(facts.timeline),
        render_panel(now, facts, ("timeline", "lost", "runs")).html,
        pages.levels_html(pages.by_level(now.graphs)),
        pages.people_html(facts, now),
        pages.stranger_html(facts.strangers[0]),
        pages.snapshots_html(facts),
        pages.settings_table_html(facts),
        pages.space_html(facts),
        pages.magic_html(HOSTILE),
        render_panel(now, facts, SECTIONS).html,
    ]
    for html in drawn:
        assert "<img" not in html and "\x1b" not in html
    text = render_panel(now, facts).text
    assert "\x1b" not in text and "\u202e" not in text


# --- how often ------------------------------------------------------------------------------------


def test_many_requests_are_few_draws_and_the_last_state_arrives() -> None:
    state, drawn = [0], []
    done = threading.Event()

    def draw() -> bool:
        drawn.append((time.perf_counter(), state[0]))
        if state[0] == 1000:
            done.set()
        return False

    refresher = Refresher(draw, 0.05, "test")
    for i in range(1, 1001):
        state[0] = i
        refresher.ask()
    assert done.wait(10)
    times = [at for at, _ in drawn]
    assert len(drawn) <= 4 and all(b - a >= 0.045 for a, b in pairwise(times))


def test_it_is_drawn_again_and_again_while_that_is_wanted_and_after_a_fault() -> None:
    drawn, enough = [], threading.Event()

    def draw() -> bool:
        drawn.append(1)
        if len(drawn) == 5:
            enough.set()
            raise RuntimeError("a fault")
        return True

    refresher = Refresher(draw, 0.01, "test")
    refresher.ask()
    assert enough.wait(10)
    time.sleep(0.1)
    assert len(drawn) == 5
    refresher.ask()
    time.sleep(0.1)
    assert len(drawn) > 5
    refresher.close()
    time.sleep(0.05)
    count = len(drawn)
    refresher.ask()
    time.sleep(0.05)
    assert len(drawn) == count


# --- in a shell -----------------------------------------------------------------------------------

SHELL = """\
import json, sys
from types import SimpleNamespace
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "nbcache")
import nbcache
session = nbcache.session()
published = []

class Publisher(type(shell.display_pub)):
    def publish(self, data, metadata=None, **more):
        published.append((data, more))

def notebook(kind="panel"):
    import comm
    ours = comm.create_comm, comm.get_comm_manager
    import ipykernel.ipkernel  # which has comms go through a kernel
    comm.create_comm, comm.get_comm_manager = ours
    shell.kernel = SimpleNamespace(_allow_stdin=True)
    shell.display_pub = Publisher()
    shell.run_cell(f"%nbcache {kind}", store_history=True)

def run(cell):
    with capture_output() as captured:
        result = shell.run_cell(cell, store_history=True)
    shown = "\\n".join(each.data.get("text/plain", "") for each in captured.outputs)
    return captured.stdout + captured.stderr + shown

def panel(kind="panel"):
    (panel,) = [each for name, each in extension()._panels._open.items() if name == kind]
    return panel

def alone(panel):  # nothing draws or gathers beside what this test does
    import time
    for each in (panel._gatherer, panel._refresher):
        each.close()
        while each._thread is not None:
            time.sleep(0.01)

def extension():
    from nbcache.ui.ipython import extension
    return extension._extension

def every(kind, name="panel"):
    from nbcache.ui.panels.controls import every
    return [each for each in every(panel(name).root) if isinstance(each, kind)]

def buttons(label, name="panel"):
    import ipywidgets
    panel(name)._draw_live()
    return [each for each in every(ipywidgets.Button, name) if each.description == label]

def press(label, name="panel"):
    (button,) = buttons(label, name)
    button.click()

def state():
    import ipywidgets
    panel()._draw_live()
    return json.dumps([each.get_state() for each in every(ipywidgets.Widget)], default=str)
"""


@pytest.fixture
def in_shell(run_python: RunPython) -> Any:
    """Return a function that runs statements after `SHELL` and returns what they leave as `value`."""

    def in_shell(code: str, **more: Any) -> Any:
        said = "sys.__stdout__.write('@@' + json.dumps(value))"
        done = run_python(f"{SHELL}\n{code}\n{said}", having="IPython", **more)
        return json.loads(done.stdout.rpartition("@@")[2])

    return in_shell


def test_in_a_terminal_a_panel_is_text(in_shell: Any) -> None:
    panel, graphs, wrong = in_shell(
        "value = [run('%nbcache ' + each) for each in ('panel', 'graphs', 'panel nothing')]"
    )
    assert panel.startswith("nbcache panel") and "SPACE" in panel and "NEXT RUN" in panel
    assert "GRAPHS" in graphs and "SPACE" not in graphs
    assert "takes one of graphs, timeline, sharing, settings, space" in wrong


def test_in_a_notebook_two_displays_and_no_widget_in_the_one_that_stays(in_shell: Any) -> None:
    first, second, transient, closed = in_shell(
        """
notebook()
value = [published[0][0], published[1][0], [each[1]['transient'] for each in published[:2]]]
notebook()
extension()._panels.close()
value.append(published[-1][1]['update'])
"""
    )
    assert set(first) == {"application/vnd.jupyter.widget-view+json", "text/html", "text/plain"}
    assert first["text/html"] == first["text/plain"] == ""
    assert set(second) == {"text/html", "text/plain"} and "nbcache panel" in second["text/plain"]
    assert not transient[0] and transient[1]["display_id"].startswith("nbcache-") and closed


def test_every_button_says_which_magic_does_the_same(in_shell: Any) -> None:
    buttons, beside = in_shell(
        """
notebook()
import ipywidgets
buttons = [[each.description, each.tooltip] for each in every(ipywidgets.Button) if each.description]
value = [buttons, ' '.join(each.value for each in every(ipywidgets.HTML))]
"""
    )
    named = {label: tooltip for label, tooltip in buttons if label not in ("yes", "no", "close")}
    assert {"why", "timeline", "stats", "doctor", "connect", "update", "restore", "share"} <= set(named)
    assert {"verify", "attach"} <= set(named)
    assert all("(%nbcache" in tooltip for tooltip in named.values())
    for magic in ("connect URL", "snapshot", "restore", "share", "clear --all", "config max_bytes="):
        assert f"%nbcache {magic}" in beside


def test_buttons_do_what_the_magics_do_and_a_failure_is_told_with_the_next_step(
    in_shell: Any, tmp_path: Path
) -> None:
    shared, settings, failed, shown, left = in_shell(
        f"""
notebook()
import ipywidgets
people, form = panel()._people, panel()._settings
people._url.value = {str(tmp_path / "shared")!r}
press('connect')
value = [panel()._message]
form._name.value, form._choice.value = 'save', 'off'
press('set')
value.append([panel()._message, session.settings.save, form._magic.value])
press('update')
value.append(panel()._message)
press('doctor')
value.append(panel()._message)
press('disconnect')
value.append([panel()._message, session.shared_client is None])
"""
    )
    assert f"connected to {tmp_path}/shared" in shared
    assert "save is off" in settings[0] and settings[1] is False and "config save=off" in settings[2]
    assert "not done:" in failed and "next:" in failed and "Traceback" not in failed
    assert "nbcache doctor" in shown
    assert "disconnected" in left[0] and left[1]


STORE = """
from nbcache.core.model import Artifact, ArtifactRef, Direction, Environment, GraphSummary, Manifest, Outcome
from nbcache.core.key import components
here = Environment(components({'device': 'cpu'}))
store = session.artifacts
def fill(*keys):
    refs = [store.put(here.digest, Artifact('inductor', key, key.encode())) for key in keys]
    graphs = [GraphSummary('c', 'f', Direction.FORWARD, Outcome.MISS, key, 1.0) for key in keys]
    store.save_manifest(Manifest(here, '', tuple(refs), tuple(graphs)))
"""


def test_removing_shows_first_what_would_go_and_does_it_once_that_is_said(in_shell: Any) -> None:
    asked, kept, gone, answers, nothing = in_shell(
        STORE
        + """
fill('k')
notebook()
press('this notebook…')
value = [[panel()._message, len(store.manifests())]]
press('no')
value.append(len(store.manifests()))
press('all…')
press('yes')
value.append([panel()._message, len(store.manifests())])
value.append(len(buttons('yes')))
press('this notebook…')
value.append([panel()._message, len(buttons('yes'))])
"""
    )
    assert "1 graph, 1 artifact" in asked[0] and asked[1] == kept == 1
    assert "removed" in gone[0] and gone[1] == 0
    assert answers == 0
    assert "nothing is stored of" in nothing[0] and nothing[1] == 0


def test_what_was_shown_is_removed_or_nothing(in_shell: Any) -> None:
    changed, kept, asked, gone = in_shell(
        STORE
        + """
fill('k')
notebook()
press('this notebook…')
fill('k', 'l')
press('yes')
value = [panel()._message, len(store.manifests())]
press('this notebook…')
value.append(panel()._message)
press('yes')
value.append([panel()._message, len(store.manifests())])
"""
    )
    assert "has changed since it was shown" in changed and "next:" in changed and kept == 1
    assert "2 graphs, 2 artifacts" in asked
    assert "removed 2 artifacts" in gone[0] and gone[1] == 0


def test_an_answer_is_to_the_question_beside_it_and_counts_once(
    in_shell: Any, ada: Person, tmp_path: Path
) -> None:
    ada.make("one")
    bob = Person(tmp_path / "bob")
    bob.make("two")
    late, asked, trusted, said = in_shell(
        f"""
from nbcache.core.trust import Keyring, spelled
for each in ({str(ada.snapshot)!r}, {str(bob.snapshot)!r}):
    extension()._snapshots.sharing.receive(each)
notebook('panel sharing')
shared = panel('sharing')
shared._facts = shared._verbs.facts()
def trusted():
    return [spelled(each.fingerprint) for each in Keyring(session.settings.trust_dir).trusted()]
one, other = buttons('trust…', 'sharing')
names = [each._fingerprint for each in shared._people._strangers]
one.click()
(first,) = buttons('yes', 'sharing')
other.click()
first.click()  # by somebody whose page shows the first question still
value = [trusted()]
(second,) = buttons('yes', 'sharing')
value.append([names[1] in shared._message, first is second])
second.click()
second.click()
value += [trusted() == names[1:], shared._message]
"""
    )
    assert late == [] and asked == [True, False]
    assert trusted and "trusted from now on" in said


def test_that_anybodys_code_may_run_is_asked_first(in_shell: Any) -> None:
    asked, before, after, strict = in_shell(
        """
notebook()
form = panel()._settings
def set(value):
    form._name.value, form._choice.value = 'trust', value
    press('set')
set('off')
value = [panel()._message, str(session.settings.trust)]
press('yes')
value.append(str(session.settings.trust))
set('strict')
value.append(str(session.settings.trust))
"""
    )
    assert "with all your rights" in asked and before == "strict" and after == "off" and strict == "strict"


def test_the_page_that_is_looked_at_stays_while_graphs_come(in_shell: Any) -> None:
    before, after, label = in_shell(
        """
from nbcache.core.model import Direction, Outcome
from nbcache.core.reports import GraphRecord
many = [GraphRecord(f"f{i}", f"{i}/0", Direction.FORWARD, Outcome.MISS) for i in range(50)]
type(session).graphs = property(lambda self: many)
notebook('graphs')
graphs, opened = panel('graphs')._graphs, panel('graphs')
graphs._filter.value = 'miss'
graphs._turn(1)
opened._draw_live()
value = [graphs._place.value]
many = [*many, many[0]]
opened._draw_live()
opened._draw_live()
value += [graphs._place.value, graphs._filter.label]
"""
    )
    assert before == "11 to 20 of 50"
    assert after == "11 to 20 of 51" and label == "miss (51)"


def test_what_cannot_be_read_is_told_and_what_was_read_stays(in_shell: Any) -> None:
    problem, notebook, unread = in_shell(
        """
notebook()
opened = panel()
alone(opened)
opened._facts = opened._verbs.facts()
def fail(): raise ValueError('hunter2')
opened._verbs.facts = fail
opened._gather()
opened._draw_live()
value = [opened._next._line.value, opened._head.value]
opened._facts = type(opened._facts)(is_read=False)
opened._gather()
opened._draw_live()
value.append(opened._space._line.value)
"""
    )
    assert "could not be read" in unread and "being read" not in unread
    assert "could not be read (ValueError" in problem and "hunter2" not in problem
    assert "torch" in notebook


def test_a_stranger_is_shown_with_the_whole_fingerprint_and_trusted_once_that_is_confirmed(
    in_shell: Any, ada: Person
) -> None:
    ada.make("one")
    signer = spelled(key_of(ada))
    shown, offered, asked, before, said, after, left = in_shell(
        f"""
from nbcache.core.trust import Keyring
extension()._snapshots.sharing.receive({str(ada.snapshot)!r})
notebook('panel sharing')
shared = panel('sharing')
def draw():
    shared._facts = shared._verbs.facts()
    shared._draw_live()
def trusted():
    return len(Keyring(session.settings.trust_dir).trusted())
draw()
(row,) = shared._people._strangers
value = [row._who.value, row._name.value]
press('trust…', 'sharing')
value += [shared._message, trusted()]
press('yes', 'sharing')
value += [shared._message, trusted()]
draw()
value.append(row.box.layout.display)
"""
    )
    assert signer in shown and "calls itself ada" in shown and offered == "" and before == 0
    assert signer in asked and "ada" not in asked and "with all your rights" in asked
    assert "Compare the fingerprint with what they tell you another way" in asked
    assert "trusted from now on" in said and after == 1 and left == "none"


def test_a_bug_is_told_without_what_it_quotes(in_shell: Any) -> None:
    message = in_shell(
        """
notebook()
def fail(): raise ValueError('hunter2')
panel()._act(fail)
value = panel()._message
"""
    )
    assert "it failed unexpectedly (ValueError)" in message and "hunter2" not in message


def test_a_button_that_is_called_while_a_cell_runs_waits_for_its_end(in_shell: Any) -> None:
    during, after = in_shell(
        """
notebook()
shell.user_ns.update(press=press, panel=panel, seen=[], session=session)
run("press('stats'); seen.append(panel()._message)")
value = [shell.user_ns['seen'][0], panel()._message]
"""
    )
    assert "waits for In[" in during and "nbcache stats" in after


def test_a_press_that_overtakes_what_was_typed_before_it_uses_what_was_typed(
    in_shell: Any, tmp_path: Path
) -> None:
    typed, elsewhere = tmp_path / "typed", tmp_path / "elsewhere"
    connected, url, bound, question = in_shell(
        f"""
import asyncio
notebook()
people, form = panel()._people, panel()._settings
run('%nbcache connect {elsewhere}')
run('%nbcache disconnect')
form._name.value = 'max_bytes'
value = []

async def kernel():
    press('connect')
    people._url.value = {str(typed)!r}
    await asyncio.sleep(0.5)
    value.extend([panel()._message, people._url.value])
    press('set')
    form._text.value = '7GB'
    await asyncio.sleep(0.5)
    value.append(session.settings.max_bytes)
    people._strangers[0]._fingerprint = 'bb42'
    press('trust…')
    people._strangers[0]._name.value = 'Ada'
    await asyncio.sleep(0.5)
    value.append(panel()._message)

from nbcache.ui.panels.people import _StrangerRow
alone(panel())
panel()._draw_live = lambda: None  # it would show no stranger, as there is none
people._strangers = [_StrangerRow(people._trust, people._ignore)]
people._list.children = [people._strangers[0].box]
asyncio.run(kernel())
"""
    )
    assert f"connected to {typed}" in connected
    assert url == "" and bound == 7_000_000_000
    assert "bb42 (Ada)" in question


def test_passwords_reach_neither_widgets_nor_what_is_saved_nor_repr(in_shell: Any) -> None:
    secret = "hunter2-secret"
    everything, failed = in_shell(
        f"""
notebook()
people = panel()._people
for url in ('redis://user:{secret}@127.0.0.1:1/0', 'redis://:{secret}@127.0.0.1:notaport', 'what://{secret}@x'):
    people._url.value = url
    press('connect')
    value = [state()]
session.configure(session.settings.with_value('shared_url', 'redis://u:{secret}@h/0', origin='test'))
panel()._facts = panel()._verbs.facts()
panel()._save(update=True)
from dataclasses import asdict
everything = state() + json.dumps(published, default=str) + repr([session, panel(), panel()._facts])
value = [everything, panel()._message]
"""
    )
    assert secret not in everything and secret not in failed
    assert "shared_url" in everything and "not done:" in failed


def test_who_is_ignored_is_shown_no_more_until_they_are_trusted(in_shell: Any, ada: Person) -> None:
    ada.make("one")
    signer = spelled(key_of(ada))
    before, said, after, arrived, wrong, trusted = in_shell(
        f"""
sharing = extension()._snapshots.sharing
sharing.receive({str(ada.snapshot)!r})
notebook('panel sharing')
shared = panel('sharing')
def draw():
    shared._facts = shared._verbs.facts()
    shared._draw_live()
draw()
value = [shared._people._strangers[0]._who.value]
press('ignore', 'sharing')
value.append(shared._message)
draw()
value.append([len(sharing.strangers()), shared._people._strangers[0].box.layout.display])
value.append(extension()._snapshots.arrived() + run('%nbcache plan').splitlines()[1:])
value.append(run('%nbcache trust ignore 0123456789'))
run('%nbcache trust add "{signer}" --name ada')
value.append([len(sharing.strangers()), run('%nbcache trust list')])
"""
    )
    assert signer in before and ("fits here" in before or "differ" in before)
    assert signer in said and "is ignored in this kernel" in said and "%nbcache trust add" in said
    assert after == [0, "none"] and not any("hers" in line or signer in line for line in arrived)
    assert "nobody who is not trusted" in wrong
    assert trusted[0] == 0 and "trusted: ada" in trusted[1]


def test_the_magic_ignores_whom_the_button_ignores(in_shell: Any, ada: Person) -> None:
    ada.make("one")
    said, left = in_shell(
        f"""
sharing = extension()._snapshots.sharing
sharing.receive({str(ada.snapshot)!r})
value = [run('%nbcache trust ignore {key_of(ada)[:8]}'), len(sharing.strangers())]
"""
    )
    assert "is ignored in this kernel" in said and left == 0


def test_verify_and_attach_do_what_their_magics_do_and_no_kernel_writes_the_notebook(
    in_shell: Any, ada: Person
) -> None:
    ada.make("one")
    ada.notebook.write_text("{}")
    before = ada.notebook.read_bytes()
    verified, magic, as_json, attached, nothing = in_shell(
        STORE
        + f"""
run('%nbcache config notebook={ada.notebook}')
notebook()
press('verify')
value = [panel()._message]
value.append(run('%nbcache verify {ada.snapshot}'))
value.append(json.loads(run('%nbcache verify {ada.snapshot} --json')))
press('attach')
value.append(panel()._message)
value.append(run('%nbcache attach more'))
"""
    )
    assert "not trusted" in verified and "not trusted" in magic
    assert as_json[0]["signer"] == key_of(ada) and as_json[0]["sound"] is False
    assert "not done:" in attached and "run a cell that compiles first" in attached
    assert "takes nothing more" in nothing
    assert ada.notebook.read_bytes() == before


def test_attach_says_what_to_run_once_the_notebook_is_closed(in_shell: Any, tmp_path: Path) -> None:
    notebook = tmp_path / "a model.ipynb"
    notebook.write_text("{}")
    said, there = in_shell(
        f"""
class Taken:
    where, graphs, artifacts = {str(notebook.with_suffix(".nbcache"))!r}, 2, 3
shell.run_line_magic('nbcache', 'config "notebook={notebook}"')
type(session).snapshot = lambda self, dest=None: Taken
value = [run('%nbcache attach'), session.notebook(5.0)]
"""
    )
    assert "holds 2 graphs" in said and there == str(notebook)
    assert f"nbcache attach '{notebook}'" in said and "%nbcache snapshot notebook" in said


def test_share_opens_the_panel_with_the_lines_to_paste_and_prints_elsewhere(in_shell: Any) -> None:
    printed, data, message, saved, kinds = in_shell(
        """
class Taken:
    where, graphs, artifacts = '/x/model.nbcache', 2, 3
type(session).snapshot = lambda self, dest=None: Taken
value = [run('%nbcache share'), json.loads(run('%nbcache share --json'))]
notebook('share')
opened = panel('sharing')
opened._facts = opened._verbs.facts()
opened._save(update=True)
value += [opened._message, published[-1][0]['text/html'], list(extension()._panels._open)]
"""
    )
    for said in (printed, message, saved):
        assert "%nbcache restore model.nbcache" in said and "%nbcache trust add" in said
    assert data["restore"] == "%nbcache restore model.nbcache" and data["trust"].startswith(
        "%nbcache trust add"
    )
    assert kinds == ["sharing"]


def test_timeline_opens_a_panel_where_there_are_widgets(in_shell: Any) -> None:
    printed, data, kinds, lines = in_shell(
        """
value = [run('%nbcache timeline'), json.loads(run('%nbcache timeline --json'))]
notebook('timeline')
opened = panel('timeline')
opened._facts = opened._verbs.facts()
opened._draw_live()
value += [list(extension()._panels._open), opened._timeline._line.value + opened._runs._line.value]
"""
    )
    assert printed.startswith("nbcache timeline") and data == {"cells": [], "lost": [], "kernels": []}
    assert kinds == ["timeline"] and "nothing has compiled" in lines and "no kernel is remembered" in lines


def test_a_row_opens_to_guards_and_code_and_compares(in_shell: Any, tmp_path: Path) -> None:
    code = tmp_path / "code.py"
    code.write_text("def call(args):\n    return args\n")
    detail, differs, closed, whole, unknown = in_shell(
        f"""
from nbcache.core.model import Direction, Outcome
from nbcache.core.reports import Difference, Explanation, GraphRecord
differs = Explanation('fnear', (Difference('lr', '1e-3', '3e-4'),))
more = dict(code_path={str(code)!r}, explanation=differs)
many = [GraphRecord('f', '0/0', Direction.FORWARD, Outcome.MISS, **more)]
type(session).graphs = property(lambda self: many)
notebook('graphs')
opened = panel('graphs')
opened._draw_live()
(row,) = opened._graphs._rows
row._toggle.click(); row._diff.click()
opened._draw_live()
value = [row._detail.value, row._differs.value]
row._toggle.click(); row._diff.click()
opened._draw_live()
value.append([row._detail.layout.display, row._differs.layout.display])
value.append(run('%nbcache graphs 0/0'))
value.append(run('%nbcache graphs g'))
"""
    )
    assert "generated code" in detail and "call" in detail and str(code) in detail
    assert "torch holds this version no more" in detail
    assert "1e-3" in differs and "3e-4" in differs
    assert closed == ["none", "none"]
    assert "def call(args):" in whole and "torch holds this version no more" in whole
    assert "no graph of this kernel is called `g`" in unknown


def test_unloading_leaves_static_html_and_no_widget(in_shell: Any) -> None:
    open_before, open_after, last = in_shell(
        """
notebook(); notebook('graphs')
import ipywidgets
from ipywidgets.widgets.widget import _instances
value = [len(_instances)]
shell.run_line_magic('unload_ext', 'nbcache')
value += [len(_instances), published[-1][0]]
"""
    )
    assert open_before > 50 and open_after == 0
    assert "text/html" in last and "<details" in last["text/html"]
