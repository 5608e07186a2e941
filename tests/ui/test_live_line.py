import itertools
import sys
import threading
from dataclasses import replace

import nbformat
import pytest
from nbclient import NotebookClient

from nbcache.core.reports import Activity
from nbcache.ui.display.render import Rendered
from nbcache.ui.ipython import live_line
from nbcache.ui.ipython.live_line import LiveLine

BUILD = Activity("train_step", "0/1", "build", 3.0, 2)
FINAL = Rendered("final report", "<b>final report</b>")


class Publisher:
    """The part of ipykernel's display publisher that LiveLine uses."""

    def __init__(self, failed=None):
        self.messages = []
        self.hooks = []
        self.failed = failed

    def publish(self, data, metadata, *, transient, update):
        if self.failed is not None:
            self.failed.set()
            raise OSError("no socket")
        self.messages.append((data["text/plain"], transient.get("display_id"), update))

    def register_hook(self, hook):
        self.hooks.append(hook)

    def unregister_hook(self, hook):
        self.hooks.remove(hook)

    def clear_output(self):
        for hook in self.hooks:
            assert hook({"msg_type": "clear_output"})

    def display(self):
        """What the cell does that displays something of its own."""
        for hook in self.hooks:
            assert hook({"msg_type": "display_data", "content": {"transient": {}}})

    @property
    def texts(self):
        return [text for text, _, _ in self.messages]


@pytest.fixture
def publisher():
    return Publisher()


class Steps:
    """A live line that looks at its sampler when a test says so, on a clock that stands between looks."""

    def __init__(self, activity, publisher):
        self.activity, self.now = activity, 100.0
        self.line = LiveLine(self.sample, publisher, clock=lambda: self.now)
        self.line.start()
        self.finish = self.line.finish

    def sample(self):
        return self.activity

    def look(self, after=live_line.INTERVAL):
        self.now += after
        self.line.sample()


@pytest.fixture
def steps(monkeypatch):
    """Return a function that starts a live line without a thread."""
    monkeypatch.setattr(live_line, "start_thread", lambda run, name: None)
    return Steps


@pytest.fixture
def quick(monkeypatch):
    """Have the thread of a line look at its sampler all the time."""
    monkeypatch.setattr(live_line, "INTERVAL", 0.001)


def test_the_line_is_emptied_and_the_final_report_is_a_display_of_its_own_after_all_else(publisher, steps):
    line = steps(BUILD, publisher)
    line.look()
    publisher.display()
    line.finish(FINAL)
    line.look()
    (shown, first_id, updated), emptied, final = publisher.messages
    assert shown == "nbcache: compiling train_step 0/1 · building kernels · 3.0 s · 2 graphs done"
    assert not updated
    assert emptied == ("", first_id, True)
    assert final == ("final report", None, False)
    assert not publisher.hooks


def test_where_the_place_is_reserved_the_line_stands_above_what_the_cell_writes(publisher, steps, capsys):
    line = steps(None, publisher)
    line.line.reserve()
    assert not publisher.messages  # nothing is written yet
    print("epoch 0")
    assert publisher.messages == [("", publisher.messages[0][1], False)]
    print("epoch 1")
    line.activity = BUILD
    line.look()
    line.finish(FINAL)
    kinds = [(bool(text), update) for text, _, update in publisher.messages]
    assert kinds == [(False, False), (True, True), (False, True), (True, False)]
    assert publisher.texts[-1] == "final report"


def test_the_streams_are_as_before_and_one_that_the_cell_has_replaced_writes_on(publisher, steps, capsys):
    line = steps(None, publisher)
    assert "write" in vars(sys.stderr)
    ours, copies = sys.stdout.write, []
    sys.stdout.write = lambda text: copies.append(text) or ours(text)
    line.finish(FINAL)
    line.finish(FINAL)
    assert publisher.texts == ["final report"] and "write" not in vars(sys.stderr)
    print("still there")
    del sys.stdout.write
    assert "still there" in copies and capsys.readouterr().out == "still there\n"


def test_a_quick_hit_shows_only_its_report_and_a_row_of_them_a_line(publisher, steps):
    line = steps(Activity("f", "0/0", "load", 0.01, 0), publisher)
    line.look()
    line.look(0.3)
    assert not publisher.messages
    line.look(0.2)
    assert "looking in the cache" in publisher.texts[0]
    line.finish(FINAL)


def test_the_line_is_sent_only_when_its_text_changes(publisher, steps):
    line = steps(BUILD, publisher)
    for _ in range(5):
        line.look()
    line.activity = replace(BUILD, seconds=4.0)
    line.look()
    line.finish(None)
    assert [text.split(" · ")[2:3] for text in publisher.texts] == [["3.0 s"], ["4.0 s"], []]
    assert live_line.INTERVAL >= 0.2


def test_the_line_goes_when_the_cell_runs_on_without_compiling(publisher, steps):
    line = steps(BUILD, publisher)
    line.look()
    line.activity = None
    line.look()
    line.look(0.9)
    assert len(publisher.messages) == 1
    line.look(0.2)
    line.activity = BUILD
    line.look()
    line.finish(FINAL)
    assert publisher.texts[1] == ""
    assert publisher.texts[2] == publisher.texts[0]


def test_a_cell_that_clears_its_output_while_the_line_is_drawn_keeps_its_report(publisher, quick):
    drawing, clearing = threading.Event(), threading.Event()
    publish = publisher.publish

    def slowly(*arguments, **options):
        drawing.set()
        assert clearing.wait(60)
        publish(*arguments, **options)

    publisher.publish = slowly
    line = LiveLine(lambda: BUILD, publisher)
    line.start()
    assert drawing.wait(60)
    clearing.set()
    publisher.clear_output()  # waits for the line to be drawn, then takes it away
    assert publisher.texts
    line.finish(FINAL)
    assert publisher.messages[-1] == ("final report", None, False)


def test_a_sampler_that_raises_turns_the_line_off_but_not_the_report(publisher, quick):
    answers, raised = iter([BUILD]), threading.Event()

    def sample():
        for answer in answers:
            return answer
        raised.set()
        raise RuntimeError("a fault")

    line = LiveLine(sample, publisher)
    line.start()
    assert raised.wait(60)
    line.finish(FINAL)
    assert publisher.texts[1:] == ["", "final report"]


def test_a_sampler_that_hangs_does_not_hold_the_cell_for_long(publisher, quick, monkeypatch):
    monkeypatch.setattr(live_line, "JOIN", 0.01)
    released, entered, ended = threading.Event(), threading.Event(), threading.Event()

    def hang():
        entered.set()
        released.wait()
        ended.set()
        return BUILD

    line = LiveLine(hang, publisher)
    line.start()
    assert entered.wait(60)
    line.finish(FINAL)  # which returns, although the sampler does not
    released.set()
    assert ended.wait(60)
    assert publisher.texts == ["final report"]


def test_a_display_that_fails_raises_nothing_into_the_cell(quick):
    failed = threading.Event()
    line = LiveLine(lambda: BUILD, Publisher(failed))
    line.start()
    assert failed.wait(60)
    line.finish(FINAL)


SETUP = """
import asyncio, threading
from IPython.display import clear_output
from tqdm import tqdm
from nbcache.core.reports import Activity
from nbcache.ui.ipython import live_line
from nbcache.ui.ipython.live_line import LiveLine
from nbcache.ui.display.render import Rendered

live_line.INTERVAL = 0.02
looks = threading.Semaphore(0)  # released by each look of the line's thread: the clock of this notebook
seconds = None  # of the compile that is made up, 0.2 for each look
line = None
depth = 0  # a cell under %%capture is a cell in a cell
shell = get_ipython()

def compiling(count=5):  # for so many looks of the line
    global seconds
    while looks.acquire(blocking=False):
        pass
    seconds = 0.5 if seconds is None else seconds
    waiting(count)

def waiting(count=2):
    for _ in range(count):
        assert looks.acquire(timeout=30)

def sample():
    global seconds
    looks.release()
    if seconds is not None:
        seconds += 0.2
        return Activity("step", "0/0", "build", seconds, 0)

def before(info):
    global depth, line
    depth += 1
    if depth == 1:
        line = LiveLine(sample, shell.display_pub)
        line.start()

def after(result):
    global depth, seconds
    depth = max(0, depth - 1)
    if depth or line is None:
        return
    compiled, seconds = seconds is not None, None
    line.finish(Rendered("report", "<b>report</b>") if compiled else None)

shell.events.register("pre_run_cell", before)
shell.events.register("post_run_cell", after)
"""
CELLS = {
    "slow": "compiling()\nprint('after')\nprint('and after')",
    "loop": "for i in range(4):\n    print(i)\n    compiling(3)",
    "bar": "seconds = 0.0\nfor i in tqdm(range(4)):\n    waiting()",
    "late bar": "for i in tqdm(range(4)):\n    compiling(2)",
    "system": "seconds = 0.0\n!echo from a process; sleep 0.5; echo and again",
    "result": "compiling()\n'a value'",
    "quick": "seconds = 0.0\nprint('quick')",
    "silent": "print('silent')\nwaiting()",
    "fails": "compiling()\n1 / 0",
    "async": "await asyncio.to_thread(compiling)\nprint('awaited')",
    "clears": "compiling()\nclear_output()\nprint('cleared')",
    "captured": "%%capture out\ncompiling()\nprint('kept')",
}


class FrontEnd(NotebookClient):
    """Runs a notebook as a front end does, and writes down what each cell was sent."""

    def process_message(self, message, cell, cell_index):
        if message["msg_type"] in ("display_data", "update_display_data"):
            sent = cell.setdefault("metadata", {}).setdefault("sent", [])
            sent.append((message["msg_type"], message["content"]["data"]["text/plain"]))
        return super().process_message(message, cell, cell_index)


OF_ONE_KERNEL = pytest.mark.xdist_group("live line")


@pytest.fixture(scope="module")
def executed():
    cells = [nbformat.v4.new_code_cell(source) for source in (SETUP, *CELLS.values(), "print('next')")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    FrontEnd(notebook, kernel_name="python3", allow_errors=True, timeout=60).execute()
    return dict(zip(("setup", *CELLS, "next"), notebook.cells, strict=True))


def outputs(cell):
    """Return a cell's outputs as a reader sees them: what is printed in a row is one, however it was sent."""
    seen = []
    for kind, run in itertools.groupby(cell.outputs, key=lambda output: output.output_type):
        if kind == "stream":
            seen.append("".join(output.text for output in run))
        else:
            seen += [output.ename if kind == "error" else output.data["text/plain"] for output in run]
    return seen


@OF_ONE_KERNEL
@pytest.mark.compile
def test_in_a_kernel_the_line_stands_above_what_is_printed_and_the_report_below(executed):
    cell = executed["slow"]
    assert outputs(cell) == ["", "after\nand after\n", "report"]
    (first, text), *updates, last = cell.metadata["sent"]
    assert first == "display_data"
    assert text.startswith("nbcache: compiling step 0/0 · building kernels · 0.")
    assert 2 <= len(updates) <= 8
    assert all(kind == "update_display_data" for kind, _ in updates)
    assert updates[-1][1] == ""
    assert last == ("display_data", "report")


@OF_ONE_KERNEL
@pytest.mark.compile
def test_in_a_kernel_a_print_loop_and_a_bar_stay_in_one_piece_above_the_report(executed):
    assert outputs(executed["loop"]) == ["0\n1\n2\n3\n", "report"]
    for name, before in (("bar", []), ("late bar", [])):
        *others, bar, report = outputs(executed[name])
        assert (others, report) == (before, "report")
        assert bar.count("\n") == 1 and "4/4" in bar
    *_, printed, report = outputs(executed["system"])
    assert (printed.split(), report) == (["from", "a", "process", "and", "again"], "report")


@OF_ONE_KERNEL
@pytest.mark.compile
@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("quick", ["quick\n", "report"]),
        ("silent", ["silent\n"]),  # it compiles nothing
        ("next", ["next\n"]),
        ("result", ["", "'a value'", "report"]),
        ("fails", ["", "ZeroDivisionError", "report"]),
        ("async", ["", "awaited\n", "report"]),
        ("clears", ["cleared\n", "report"]),
        ("captured", ["", "report"]),
    ],
)
def test_in_a_kernel_the_report_comes_last_whatever_the_cell_does(executed, name, seen):
    assert outputs(executed[name]) == seen
