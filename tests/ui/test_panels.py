"""Panels by what they draw: of values that a test makes up, and in a real shell of a fresh interpreter."""

from __future__ import annotations

import asyncio
import queue
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nbcache.core.errors import NbcacheError
from nbcache.core.key import components
from nbcache.core.model import Direction, Environment, Level, Outcome
from nbcache.core.reports import Activity, Cell, Difference, Explanation, GraphContents, GraphRecord
from nbcache.kernel.explain.plan import Plan
from nbcache.kernel.explain.timeline import CellTimes, KernelRun, Lost, Timeline
from nbcache.kernel.explain.why import explain
from nbcache.sharing.trust import spelled
from nbcache.torch_bridge.cache_settings import CacheSetting
from nbcache.ui.display.panel import SECTIONS, Facts, Now, Stranger, machine_parts, render_panel
from nbcache.ui.display.reports import render_graph
from nbcache.ui.display.stats import render_timeline
from nbcache.ui.display.words import StoreFigures
from nbcache.ui.ipython import panel as panel_module
from nbcache.ui.ipython.panel import Panel, Refresher
from support.drawn import Drawn, DrawsAtOnce
from support.html_page import Page
from support.people import key_of
from support.shells import value_in_shell

HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m\u202e"
HERE = Environment(components({"torch.version": "2.13.0", "device": "cpu", "cpu.capability": "AVX512"}))
NO_CONTENTS = GraphContents((), "torch no longer holds this version", "", "there is no file")


TIMES = Timeline(
    (
        CellTimes("In[3]", ("train",), {"load": 0.5}, {"inductor": 9.5, "outside": 0.5}, None, True),
        CellTimes("In[4]", ("step",), {"dynamo": 1.0, "build": 3.0}, None, {"load": 0.2}, False),
    ),
    (Lost("step", "miss: lr differs", 2, 8.0),),
    (KernelRun(10_000.0, 3, 2, 4.5, True), KernelRun(2_800.0, 3, 0, 20.0, False)),
)


def graph(function="step", count=3, **more):
    known: dict[str, Any] = {
        "direction": Direction.FORWARD,
        "outcome": Outcome.MISS,
        "compile_id": "0/0",
        "cell": Cell.of(f"{function} {count}", count),
        "seconds": {"inductor": 1.5, "total": 2.0},
    }
    return GraphRecord(function=function, **{**known, **more})


def why_of(graph):
    return explain([graph], [graph])[0]


class Kernel:
    """A kernel behind a panel, whose values a test sets; it notes what the buttons do."""

    def __init__(self, now=None, facts=None):
        self.state, self.known = now or Now(), facts or Facts()
        self.done: list[tuple[Any, ...]] = []
        self.waiting: list[Callable[[], None]] = []

    def now(self):
        return self.state

    def facts(self):
        return self.known

    def later(self, action):
        if self.state.running:
            self.waiting.append(action)
        else:
            action()
        return self.state.running

    def graph(self, name):
        found = [graph for graph in self.state.graphs if graph.compile_id == name]
        return [render_graph(why_of(graph), NO_CONTENTS) for graph in found]

    def going(self, *, everything=False):
        return f"{'all' if everything else 'one'} would go", lambda: self.removed(everything)

    def __getattr__(self, verb):
        def act(*words):
            self.done.append((verb, *words))
            return [f"{verb} is done"]

        return act


@pytest.fixture
def open_panel(monkeypatch):
    """Return a function that opens a panel on a kernel, drawn at once on each change."""
    monkeypatch.setattr(panel_module, "Refresher", DrawsAtOnce)
    panels: list[Panel] = []

    def open_panel(kernel, *sections):
        published: list[dict[str, Any]] = []
        panels.append(Panel(kernel, lambda data, _: published.append(data), sections or SECTIONS))
        panels[-1].open()
        return panels[-1], Drawn(panels[-1].root), published

    yield open_panel
    for panel in panels:
        panel.close()


# --- the graphs of a page -------------------------------------------------------------------------


def test_the_newest_cell_stands_first_and_its_graphs_as_they_compiled():
    one, two = Cell.of("a", 1), Cell.of("b", 2)
    graphs = [graph("f1", cell=one), graph("f2", cell=one), graph("f3", cell=two), graph("f4", cell=two)]
    text = render_panel(Now(graphs), Facts(), ["graphs"]).text
    assert re.findall(r"In\[\d\]|f\d", text) == ["In[2]", "f3", "f4", "In[1]", "f1", "f2"]


def test_a_graph_opens_to_all_that_its_record_tells_and_is_shown_whole(open_panel):
    differs = Explanation("fnear", (Difference("lr", "1e-3", "3e-4", "In[4]:7"),))
    missed = graph(reason="not stored", key="fabc", bytes={"inductor": 2048}, explanation=differs)
    kernel = Kernel(Now([missed]))
    panel, drawn, _ = open_panel(kernel, "graphs")
    for text in ("not stored", "Inductor 1.5 s", "inductor 2.0 kB", "fabc", "next:", "lr: 1e-3 before, 3e-4"):
        assert text in drawn.text
    assert "<details" in drawn.html and "fabc" not in render_panel(Now([missed]), Facts(), ["graphs"]).text
    kernel.state = Now([missed, graph("other", compile_id="1/0")])
    panel.ask()
    drawn.press("show")
    assert "torch no longer holds this version" in drawn.text and "there is no file" in drawn.text


# --- one graph ------------------------------------------------------------------------------------


def test_guards_and_code_are_folded_and_code_has_colours_as_inline_styles():
    code = "def call(args):  # <b>\n    return 'text'\n"
    missed = graph(key="fabc", code_path="/cache/x.py")
    shown = render_graph(why_of(missed), GraphContents(("L['x'] is None",), "", code, ""))
    page = Page(shown.html)
    assert page.folded == 2
    for text in (page.text, shown.text):
        assert "L['x'] is None" in text and "/cache/x.py" in text and "2 lines" in text and "# <b>" in text
    assert re.search(r'<span style="color:[^"]+">def</span>', shown.html)
    data = dict(shown.data or {})
    assert data["guards"] == ["L['x'] is None"] and data["code"] == code and data["no_code"] is None
    assert data["code_path"] == "/cache/x.py" and data["graph"]["key"] == "fabc"


def test_long_code_is_cut():
    shown = render_graph(why_of(graph()), GraphContents((), "it is gone", "x = 1\n" * 5000, ""))
    assert "the first 400 of 5000 lines" in shown.html and len(shown.html) < 100_000
    assert "guards: it is gone" in shown.text


# --- the timeline ---------------------------------------------------------------------------------


def test_the_timeline_has_bars_on_one_scale_and_says_in_words_what_they_say():
    shown = render_timeline(TIMES, at=10_000.0)
    assert "width:95.00%" in shown.html and "width:30.00%" in shown.html  # of the longest bar, 10 s
    for text in (Page(shown.html).text, shown.text):
        for words in ("cold", "restored", "10.0 s", "kernel build", "lr differs", "2 of 3 graphs", "2 h ago"):
            assert words in text
    assert "Inductor 9.5 s" in Page(shown.html).text


# --- sections -------------------------------------------------------------------------------------


def test_the_panel_says_what_compiles_with_phase_and_time_and_that_buttons_wait(open_panel):
    kernel = Kernel(Now((), Activity("step", "0/1", "inductor", 2.5, 1), "In[5]", 3.04))
    panel, drawn, _ = open_panel(kernel)
    for text in ("In[5] runs, 3.0 s", "compiling step 0/1", "generating code", "acts at its end"):
        assert text in drawn.text
    kernel.state = Now()
    panel.ask()
    assert "no cell runs" in drawn.text and "acts at" not in drawn.text


def test_levels_say_from_where_hits_came_and_why_others_did_not_hit():
    hit = graph(outcome=Outcome.HIT, level=Level.L1, saved_seconds=3.0)
    text = render_panel(Now([hit, graph()]), Facts(), ["levels"]).text
    assert "LEVELS · L0 0 · L1 1 · L2 0 · L3 0 · compiled here 1" in text
    assert "L1 local store" in text and "3.0 s" in text and "not hit because" in text


def test_the_machine_is_told_in_short():
    assert machine_parts(HERE, [graph(threads=2)]) == ["torch 2.13.0", "CPU AVX512", "2 threads"]
    assert machine_parts(None, []) == []


def test_settings_that_differ_from_their_defaults_are_told_in_short():
    rows = [
        CacheSetting("save", "off", "%nbcache config", "record"),
        CacheSetting("live", "on", "default", "line"),
        CacheSetting("dir", "/long/path", "environment, NBCACHE_DIR", "folder"),
    ]
    assert "SETTINGS · save=off\n" in render_panel(Now(), Facts(settings=rows), ["settings"]).text
    assert "all as by default" in render_panel(Now(), Facts(), ["settings"]).text


# --- a saved notebook -----------------------------------------------------------------------------


def test_a_saved_panel_is_static_html_that_a_sanitizer_leaves_as_it_is():
    now = Now([graph(), graph("other", 4, outcome=Outcome.HIT, level=Level.L2, source="m.nbcache")])
    facts = Facts(
        notebook="m.ipynb",
        snapshots=["m.nbcache · 12 kB", "m.nbcache: 3 graphs, yours"],
        store=StoreFigures("local store", 3, 1000, 5000),
    )
    saved = render_panel(now, facts, SECTIONS, note="run this cell again")
    for words in ("m.ipynb", "other", "12 kB", "as of", "run this cell again", "not connected"):
        assert words in Page(saved.html).text and words in saved.text
    part = render_panel(now, facts, ("people", "snapshot"))
    assert "SNAPSHOT" in part.html and "SPACE" not in part.html + part.text


def test_of_many_graphs_few_are_saved():
    saved = render_panel(Now([graph(f"f{i}", count=i // 10) for i in range(2000)]), Facts())
    assert "and 1980 graphs before" in saved.text and len(saved.html) < 100_000


def test_what_is_not_read_yet_is_not_said_to_be_missing():
    text = render_panel(Now(), Facts(is_read=False)).text
    assert text.count("being read") == 5
    for wrong in ("cannot", "none is beside", "as by default", "nothing that this notebook"):
        assert wrong not in text


def test_names_from_elsewhere_are_shown_as_text(open_panel):
    known = graph(
        **dict.fromkeys(("function", "reason", "key", "location", "source", "code_path"), HOSTILE),
        recompile_reason=HOSTILE,
        explanation=Explanation(HOSTILE, (Difference(HOSTILE, HOSTILE, HOSTILE, HOSTILE),)),
    )
    facts = Facts(
        paste=[HOSTILE],
        notebook=HOSTILE,
        machine=[HOSTILE],
        plan=Plan(gone=(HOSTILE,), notes=(HOSTILE,)),
        people=[HOSTILE],
        strangers=[Stranger(HOSTILE, HOSTILE, HOSTILE, HOSTILE)],
        snapshots=[HOSTILE, HOSTILE],
        settings=[CacheSetting(HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE)],
    )
    now = Now([known], Activity(HOSTILE, "0/0", HOSTILE, 1.0, 0), HOSTILE, 1.0, [HOSTILE])
    saved = render_panel(now, facts)
    times = Timeline(
        (CellTimes(HOSTILE, (HOSTILE,), {"inductor": 1.0}, None, {"load": 0.1}, False),),
        (Lost(HOSTILE, HOSTILE, 1, 1.0),),
        (KernelRun(1.0, 1, 1, 1.0, True),),
    )
    timeline = render_timeline(times, HOSTILE)
    whole = render_graph(why_of(known), GraphContents((HOSTILE,), "", HOSTILE, ""))
    without = render_graph(why_of(known), GraphContents((), HOSTILE, "", HOSTILE))
    kernel = Kernel(now, facts)
    panel, drawn, _ = open_panel(kernel)
    panel.say([HOSTILE])
    for html in (saved.html, timeline.html, whole.html, without.html, drawn.html):
        assert "<img" not in html and "\x1b" not in html
    for text in (saved.text, timeline.text, whole.text, without.text):
        assert "\x1b" not in text and "\u202e" not in text


# --- how often ------------------------------------------------------------------------------------


class Naps:
    """A clock that stands until a test lets it go on."""

    def __init__(self):
        self.begun: queue.Queue[float] = queue.Queue()
        self._over: queue.Queue[None] = queue.Queue()

    def sleep(self, seconds):
        self.begun.put(seconds)
        self._over.get(timeout=10)

    def end(self):
        self._over.put(None)


def test_many_requests_are_few_draws_and_the_last_state_arrives():
    state, drawn, naps = [0], [], Naps()
    refresher = Refresher(lambda: bool(drawn.append(state[0])), 0.2, "test", sleep=naps.sleep)
    refresher.ask()
    assert naps.begun.get(timeout=10) == 0.2
    for i in range(1, 1001):
        state[0] = i
        refresher.ask()
    assert drawn == [0]
    naps.end()
    naps.begun.get(timeout=10)
    assert drawn == [0, 1000]
    naps.end()


def test_it_is_drawn_again_while_that_is_wanted_and_after_a_fault():
    drawn, naps = [], Naps()

    def draw():
        drawn.append(1)
        if len(drawn) == 3:
            raise RuntimeError("a fault")
        return True

    refresher = Refresher(draw, 0.2, "test", sleep=naps.sleep)
    refresher.ask()
    for count in (1, 2, 3):
        naps.begun.get(timeout=10)
        assert len(drawn) == count
        naps.end()
    (thread,) = [t for t in threading.enumerate() if "test" in t.name] or [None]
    if thread is not None:
        thread.join(10)
    refresher.ask()
    naps.begun.get(timeout=10)
    assert len(drawn) == 4
    refresher.close()
    naps.end()
    refresher.ask()
    assert len(drawn) == 4


# --- buttons --------------------------------------------------------------------------------------


def test_every_button_says_which_magic_does_the_same(open_panel):
    _, drawn, _ = open_panel(Kernel(Now(shared=["redis://host"])))
    buttons = [w for w in drawn.every() if type(w).__name__ == "Button" and w.description]
    named = {button.description: button.tooltip for button in buttons if button.description != "close"}
    assert {"why", "timeline", "stats", "doctor", "connect", "update", "restore", "share"} <= set(named)
    assert {"verify", "attach", "disconnect", "trust…", "ignore", "this notebook…", "all…"} <= set(named)
    assert all("(%nbcache" in tooltip for tooltip in named.values())
    drawn.press("open settings")
    drawn.press("open space")
    for magic in ("disconnect", "snapshot", "restore", "share", "clear --all", "config NAME=VALUE"):
        assert f"%nbcache {magic}" in drawn.text


def test_nothing_is_removed_before_that_is_confirmed(open_panel):
    kernel = Kernel()
    _, drawn, _ = open_panel(kernel, "space")
    drawn.press("this notebook…")
    assert "one would go" in drawn.text
    drawn.press("no")
    assert "Nothing was done" in drawn.text and not drawn.buttons("yes") and kernel.done == []
    drawn.press("all…")
    drawn.press("yes")
    assert kernel.done == [("removed", True)] and "removed is done" in drawn.text
    assert not drawn.buttons("yes")


def test_an_answer_is_to_the_question_beside_it_and_is_taken_once(open_panel):
    strangers = [Stranger("aaaa", "ada", "a.nbcache"), Stranger("bbbb", "bob", "b.nbcache")]
    kernel = Kernel(facts=Facts(strangers=strangers))
    _, drawn, _ = open_panel(kernel, "people")
    assert "calls itself ada" in drawn.text and drawn.field is not None
    drawn.press("trust…")
    (first,) = drawn.buttons("yes")
    drawn.choice("bbbb").value = "bbbb"
    drawn.press("trust…")
    first.click()  # by somebody whose page shows the first question still
    assert kernel.done == []
    assert "bbbb" in drawn.text and "with all your rights" in drawn.text
    assert "Compare the fingerprint with what they tell you another way" in drawn.text
    (second,) = drawn.buttons("yes")
    second.click()
    second.click()
    assert kernel.done == [("trust", "bbbb", "")]
    drawn.choice("aaaa").value = "aaaa"
    drawn.press("ignore")
    assert kernel.done[1:] == [("ignore", "aaaa")]
    kernel.known = Facts()
    drawn.press("refresh")
    assert "aaaa" not in drawn.text and not drawn.buttons("trust…")


def test_that_anybodys_code_may_run_is_asked_first(open_panel):
    kernel = Kernel(facts=Facts(settings=[CacheSetting("trust", "strict", "default", "whose code runs")]))
    _, drawn, _ = open_panel(kernel, "settings")
    drawn.field("NAME").value = "trust=Off"
    drawn.press("set")
    assert "with all your rights" in drawn.text and kernel.done == []
    drawn.press("yes")
    drawn.field("NAME").value = "trust=strict"
    drawn.press("set")
    assert kernel.done == [("change", "trust", "Off"), ("change", "trust", "strict")]


def test_what_cannot_be_read_is_told_and_what_was_read_stays(open_panel):
    kernel = Kernel(facts=Facts(machine=["torch 2.13.0"]))
    panel, drawn, _ = open_panel(kernel)

    def fail():
        raise ValueError("hunter2")

    kernel.facts = fail
    panel.ask(facts=True)
    assert "could not be read (ValueError" in drawn.text and "hunter2" not in drawn.text
    assert "torch 2.13.0" in drawn.text
    _, unread, _ = open_panel(kernel)
    assert "could not be read" in unread.text and "being read" not in unread.text.partition("NEXT RUN")[2]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("hunter2"), "not done: it failed unexpectedly (ValueError)"),
        (NbcacheError("it is off", next_step="turn it on"), "not done: it is off next: turn it on"),
    ],
)
def test_a_failure_is_told_with_the_next_step_and_a_bug_without_its_message(error, words, open_panel):
    kernel = Kernel()

    def fail():
        raise error

    kernel.doctor = fail
    _, drawn, _ = open_panel(kernel)
    drawn.press("doctor")
    assert words in " ".join(drawn.text.split()) and "hunter2" not in drawn.text


def test_a_button_that_is_called_while_a_cell_runs_waits_for_its_end(open_panel):
    kernel = Kernel(Now(running="In[3]"))
    _, drawn, _ = open_panel(kernel)
    drawn.press("stats")
    assert "waits for In[3] to end" in drawn.text
    assert drawn.field("redis://").disabled
    kernel.state = Now()
    kernel.waiting.pop()()
    assert "stats is done" in drawn.text


def test_a_press_that_overtakes_what_was_typed_before_it_uses_what_was_typed(open_panel):
    kernel = Kernel(facts=Facts(strangers=[Stranger("aaaa", "", "a.nbcache")]))
    _, drawn, _ = open_panel(kernel)
    drawn.press("open settings")

    async def press():
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        for label, field, typed in (
            ("connect", drawn.field("redis://"), "/shared"),
            ("set", drawn.field("NAME"), "max_bytes=7GB"),
            ("trust…", drawn.field("your name for"), "Ada"),
        ):
            drawn.press(label)
            field.value = typed
        loop.call_later(0.2, told.set)
        await told.wait()

    asyncio.run(press())
    assert kernel.done == [("connect", "/shared"), ("change", "max_bytes", "7GB")]
    assert "aaaa (Ada)" in drawn.text
    assert drawn.field("redis://").value == ""


def test_closing_leaves_static_html_and_no_widget(open_panel):
    kernel = Kernel(Now([graph()]), Facts(machine=["torch 2.13.0"]))
    panel, drawn, published = open_panel(kernel)
    first, second, *_ = published
    assert set(first) == {"application/vnd.jupyter.widget-view+json", "text/html", "text/plain"}
    assert first["text/html"] == first["text/plain"] == ""
    assert set(second) == {"text/html", "text/plain"} and "nbcache panel" in second["text/plain"]
    panel.close()
    assert all(widget.comm is None for widget in drawn.every())
    assert "<details" in published[-1]["text/html"] and "torch 2.13.0" in published[-1]["text/plain"]


# --- in a shell -----------------------------------------------------------------------------------

PANELS = """\
from types import SimpleNamespace
sys.path.insert(0, TESTS)
from support.drawn import Drawn, DrawsAtOnce
import nbcache
session = nbcache.session()
published, panels = [], []

class Publisher(type(shell.display_pub)):
    def publish(self, data, metadata=None, **more):
        published.append((data, more))

def notebook(kind="panel"):
    '''Run a magic as in a notebook, where there are widgets, and return what it draws.'''
    import comm
    ours = comm.create_comm, comm.get_comm_manager
    import ipykernel.ipkernel  # which has comms go through a kernel
    comm.create_comm, comm.get_comm_manager = ours
    from nbcache.ui.ipython import panel as module
    if module.Refresher is not DrawsAtOnce:
        module.Refresher, real = DrawsAtOnce, module.Panel

        class Noted(real):
            def __init__(self, *arguments):
                super().__init__(*arguments)
                panels.append(self)

        module.Panel = Noted
    shell.kernel = SimpleNamespace(_allow_stdin=True)
    shell.display_pub = Publisher()
    shell.run_cell(f"%nbcache {kind}", store_history=True)
    return Drawn(panels[-1].root)

ran = run
run = lambda cell: ran(cell)["text"]

def fill(*keys):
    from nbcache.core.model import Artifact, Direction, Environment, GraphSummary, Manifest, Outcome
    from nbcache.core.key import components
    here = Environment(components({'device': 'cpu'}))
    refs = [session.artifacts.put(here.digest, Artifact('inductor', key, key.encode())) for key in keys]
    graphs = [GraphSummary('c', 'f', Direction.FORWARD, Outcome.MISS, key, 1.0) for key in keys]
    session.artifacts.save_manifest(Manifest(here, '', tuple(refs), tuple(graphs)))

def stored():
    return len(session.artifacts.manifests())

def trusted():
    from nbcache.sharing.trust import Keyring, spelled
    return [spelled(signer.fingerprint) for signer in Keyring(session.settings.trust_dir).trusted_signers()]
"""


@pytest.fixture
def in_shell(run_python):
    """Return a function that runs statements after `PANELS` and returns what they leave as `value`."""
    tests = f"TESTS = {str(Path(__file__).parents[1])!r}"
    return lambda code: value_in_shell(run_python, f"{tests}\n{PANELS}\n{code}")


def test_in_a_terminal_a_panel_is_text(in_shell):
    panel, graphs, wrong, timeline, same, data = in_shell(
        """
value = [run('%nbcache ' + words) for words in ('panel', 'graphs', 'panel nothing', 'timeline',
         'panel timeline')]
value.append(json.loads(run('%nbcache timeline --json')))
"""
    )
    assert panel.startswith("nbcache panel") and "SPACE" in panel and "NEXT RUN" in panel
    assert "GRAPHS" in graphs and "SPACE" not in graphs
    assert "there is no panel `nothing`" in wrong
    assert timeline == same and timeline.startswith("nbcache timeline")
    assert data == {"cells": [], "lost": [], "kernels": []}


def test_of_a_kind_the_newest_panel_is_live_and_unloading_leaves_no_widget(in_shell):
    transient, lines, replaced, before, after, last = in_shell(
        """
one, other = notebook(), notebook('graphs')
value = [[more['transient'] for _, more in published[:2]], other.text]
notebook()
value.append(one.root.comm is None)
from ipywidgets.widgets.widget import _instances
value.append(len(_instances))
shell.run_line_magic('unload_ext', 'nbcache')
value += [len(_instances), published[-1]]
"""
    )
    assert not transient[0] and transient[1]["display_id"].startswith("nbcache-")
    assert "nothing has compiled" in lines
    assert replaced and before > 50 and after == 0
    assert "LEVELS" in last[0]["text/html"] and last[1]["update"]


def test_buttons_do_what_the_magics_do(in_shell, tmp_path):
    shared, settings, saves, failed, shown, left, connected = in_shell(
        f"""
drawn = notebook()
drawn.field('redis://').value = {str(tmp_path / "shared")!r}
drawn.press('connect')
value = [drawn.text]
drawn.press('open settings')
drawn.field('NAME').value = 'save=off'
drawn.press('set')
value += [drawn.text, session.settings.save]
drawn.press('update')
value.append(drawn.text)
drawn.press('doctor')
value.append(drawn.text)
drawn.press('disconnect')
value += [drawn.text, session.shared_client is not None]
"""
    )
    assert f"connected to {tmp_path}/shared" in shared
    assert "save is off" in settings and not saves
    assert "not done:" in failed and "next:" in failed and "Traceback" not in failed
    assert "nbcache doctor" in shown
    assert "disconnected" in left and not connected


def test_removing_removes_what_was_shown_or_nothing(in_shell):
    asked, changed, kept, gone, left, nothing = in_shell(
        """
fill('k')
drawn = notebook('panel space')
drawn.press('this notebook…')
value = [drawn.text]
fill('k', 'l')
drawn.press('yes')
value += [drawn.text, stored()]
drawn.press('this notebook…')
drawn.press('yes')
value += [drawn.text, stored()]
drawn.press('this notebook…')
value.append([drawn.text, len(drawn.buttons('yes'))])
"""
    )
    assert "1 graph, 1 artifact" in asked
    assert "have changed since they were shown" in changed and "next:" in changed and kept == 1
    assert "removed 2 artifacts" in gone and left == 0
    assert "0 graphs, 0 artifacts of" in nothing[0] and "torch's folder is emptied" in nothing[0]
    assert nothing[1] == 1


def test_a_stranger_is_ignored_or_trusted_once_that_is_confirmed(in_shell, ada):
    ada.make("one")
    signer = spelled(key_of(ada))
    shown, asked, before, ignored, buttons, plan, wrong, added, after = in_shell(
        f"""
run('%nbcache restore {ada.snapshot}')
drawn = notebook('panel sharing')
value = [drawn.text]
drawn.press('trust…')
value += [drawn.text, trusted()]
drawn.press('no')
drawn.press('ignore')
value += [drawn.text, len(drawn.buttons('ignore')), run('%nbcache plan')]
value.append(run('%nbcache trust ignore 0123456789'))
value += [run('%nbcache trust add "{signer}" --name ada'), trusted()]
"""
    )
    assert signer in shown and "calls itself ada" in shown and ("fits here" in shown or "differ" in shown)
    assert signer in asked and "with all your rights" in asked and before == []
    assert "is ignored in this kernel" in ignored and "%nbcache trust add" in ignored and buttons == 0
    assert signer not in plan
    assert "no untrusted signer" in wrong
    assert "trusted from now on" in added and after == [signer]


def test_passwords_reach_neither_widgets_nor_what_is_saved_nor_repr(in_shell):
    secret = "hunter2-secret"
    everything, failed = in_shell(
        f"""
def state():
    return json.dumps([widget.get_state() for widget in drawn.every()], default=str)
drawn = notebook()
everything = ''
for url in ('redis://user:{secret}@127.0.0.1:1/0', 'redis://:{secret}@127.0.0.1:notaport', 'what://{secret}@x'):
    drawn.field('redis://').value = url
    drawn.press('connect')
    everything += state()
failed = drawn.text
session.configure(session.settings.with_value('shared_url', 'redis://u:{secret}@h/0', origin='test'))
drawn.press('open settings')
drawn.field('NAME').value = 'shared_url=redis://u:{secret}@h/0'
drawn.press('set')
drawn.press('refresh')
everything += state() + json.dumps(published, default=str) + repr([session, *panels])
value = [everything, failed]
"""
    )
    assert secret not in everything and secret not in failed
    assert "shared_url" in everything and "not done:" in failed


def test_verify_and_attach_do_what_their_magics_do_and_no_kernel_writes_the_notebook(in_shell, ada):
    ada.make("one")
    ada.notebook.write_text("{}")
    before = ada.notebook.read_bytes()
    verified, magic, as_json, attached, nothing = in_shell(
        f"""
run('%nbcache config notebook={ada.notebook}')
drawn = notebook()
drawn.press('verify')
value = [drawn.text, run('%nbcache verify {ada.snapshot}')]
value.append(json.loads(run('%nbcache verify {ada.snapshot} --json')))
drawn.press('attach')
value += [drawn.text, run('%nbcache attach more')]
"""
    )
    assert "not trusted" in verified and "not trusted" in magic
    assert as_json[0]["signer"] == key_of(ada) and as_json[0]["sound"] is False
    assert "not done:" in attached and "run a cell that compiles first" in attached
    assert "`more` is not understood" in nothing
    assert ada.notebook.read_bytes() == before


TAKEN = """
class Taken:
    where, graphs, artifacts = {where!r}, 2, 3
type(session).snapshot = lambda self, dest=None: Taken
"""


def test_attach_says_what_to_run_once_the_notebook_is_closed(in_shell, tmp_path):
    notebook = tmp_path / "a model.ipynb"
    notebook.write_text("{}")
    said, there = in_shell(
        TAKEN.format(where=str(notebook.with_suffix(".nbcache")))
        + f"""
shell.run_line_magic('nbcache', 'config "notebook={notebook}"')
value = [run('%nbcache attach'), session.notebook(5.0)]
"""
    )
    assert "holds 2 graphs" in said and there == str(notebook)
    assert f"nbcache attach '{notebook}'" in said and "%nbcache snapshot notebook" in said


def test_share_opens_the_panel_with_the_lines_to_paste_and_prints_elsewhere(in_shell):
    printed, data, drawn, saved, titles = in_shell(
        TAKEN.format(where="/x/model.nbcache")
        + """
value = [run('%nbcache share'), json.loads(run('%nbcache share --json'))]
drawn = notebook('share')
value += [drawn.text, published[-1][0]['text/html'], 'SPACE' in drawn.text]
"""
    )
    for text in (printed, drawn, saved):
        assert "%nbcache restore model.nbcache" in text and "%nbcache trust add" in text
    assert data["restore"] == "%nbcache restore model.nbcache"
    assert data["trust"].startswith("%nbcache trust add") and not titles


def test_one_graph_is_shown_whole(in_shell, tmp_path):
    code = tmp_path / "code.py"
    code.write_text("def call(args):\n    return args\n")
    opened, whole, unknown = in_shell(
        f"""
from nbcache.core.model import Direction, Outcome
from nbcache.core.reports import GraphRecord
record = GraphRecord('f', '0/0', Direction.FORWARD, Outcome.MISS, code_path={str(code)!r})
type(session).graphs = property(lambda self: [record])
drawn = notebook('graphs')
drawn.press('show')
value = [drawn.text, run('%nbcache graphs 0/0'), run('%nbcache graphs g')]
"""
    )
    for text in (opened, whole):
        assert "call" in text and str(code) in text and "torch no longer holds this version" in text
    assert "no graph of this kernel is called `g`" in unknown
