import io
import itertools
import os
import re
import sys
import threading
import time

import nbformat
import pexpect
import pytest
from nbclient import NotebookClient

from nbcache.core.reports import Activity
from nbcache.ui.display.render import Rendered
from nbcache.ui.ipython import live_line
from nbcache.ui.ipython.live_line import LiveLine

BUILD = Activity("train_step", "0/1", "build", 3.0, 2)
FINAL = Rendered("final report", "<b>final report</b>")


class Publisher:
    """What ipykernel's display publisher does, as far as LiveLine asks it."""

    def __init__(self, broken=False):
        self.messages = []
        self.hooks = []
        self.broken = broken

    def publish(self, data, metadata, *, transient, update):
        if self.broken:
            raise OSError("no socket")
        self.messages.append((time.monotonic(), data["text/plain"], transient.get("display_id"), update))

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
        return [text for _, text, _, _ in self.messages]


class Shell:
    kernel = object()

    def __init__(self, publisher):
        self.display_pub = publisher


class Terminal(io.StringIO):
    def isatty(self):
        return True

    @property
    def lines(self):
        """What has stood on the line, in order."""
        return [line.strip() for line in self.getvalue().split("\r") if line.strip()]


@pytest.fixture
def publisher():
    return Publisher()


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(live_line, "INTERVAL", 0.01)
    monkeypatch.setattr(live_line._KernelScreen, "patience", 0.05)


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_line_is_emptied_and_the_final_report_is_a_display_of_its_own_after_all_else(publisher, quick):
    line = LiveLine(lambda: BUILD, shell=Shell(publisher))
    line.start()
    until(lambda: publisher.messages)
    publisher.display()
    line.finish(FINAL)
    time.sleep(0.05)
    (_, shown, first_id, updated), (_, *emptied), (_, *final) = publisher.messages
    assert shown == "nbcache: compiling train_step 0/1 · building kernels · 3.0 s · 2 graphs done"
    assert not updated
    assert emptied == ["", first_id, True]
    assert final == ["final report", None, False]
    assert not publisher.hooks


@pytest.mark.parametrize("written", ["print", "progress bar", "display"])
def test_no_line_is_put_amid_what_a_cell_has_begun_to_write(publisher, quick, written, capsys):
    line = LiveLine(lambda: BUILD, shell=Shell(publisher))
    with line._lock:  # the cell is sooner
        line.start()
        if written == "print":
            print("epoch 0")
        elif written == "progress bar":
            sys.stderr.write("\r  0%|")
        else:
            publisher.display()
    time.sleep(0.1)
    line.finish(FINAL)
    assert publisher.texts == ["final report"]


def test_where_the_place_is_reserved_the_line_stands_above_what_the_cell_writes(publisher, quick, capsys):
    activity = [None]
    line = LiveLine(lambda: activity[0], shell=Shell(publisher))
    line.start()
    line.reserve()
    assert not publisher.messages  # nothing is written yet
    print("epoch 0")
    assert [message[1:] for message in publisher.messages] == [("", publisher.messages[0][2], False)]
    print("epoch 1")
    activity[0] = BUILD
    until(lambda: len(publisher.messages) == 2)
    line.finish(FINAL)
    kinds = [(bool(text), update) for _, text, _, update in publisher.messages]
    assert kinds == [(False, False), (True, True), (False, True), (True, False)]
    assert publisher.texts[-1] == "final report"


def test_the_streams_are_as_before_when_the_cell_has_ended(publisher, quick, capsys):
    line = LiveLine(lambda: None, shell=Shell(publisher))
    line.start()
    assert "write" in vars(sys.stdout) and "write" in vars(sys.stderr)
    line.finish(FINAL)
    assert "write" not in vars(sys.stdout) and "write" not in vars(sys.stderr)


def test_a_stream_that_the_cell_has_replaced_writes_on(publisher, quick, capsys):
    line = LiveLine(lambda: None, shell=Shell(publisher))
    line.start()
    ours, kept = sys.stdout.write, []
    sys.stdout.write = lambda text: kept.append(text) or ours(text)
    line.finish(FINAL)
    print("still there")
    del sys.stdout.write
    assert "still there" in kept and capsys.readouterr().out == "still there\n"


def test_a_quick_hit_shows_only_its_report(publisher, quick):
    started = time.monotonic()
    line = LiveLine(
        lambda: Activity("f", "0/0", "load", time.monotonic() - started, 0), shell=Shell(publisher)
    )
    line.start()
    time.sleep(0.1)
    line.finish(FINAL)
    assert [message[1:] for message in publisher.messages] == [("final report", None, False)]


def test_a_row_of_quick_hits_appears_once_it_has_lasted(publisher, quick):
    line = LiveLine(lambda: Activity("f", "0/0", "load", 0.01, 0), shell=Shell(publisher))
    line.start()
    until(lambda: publisher.messages)
    line.finish(FINAL)
    assert "looking in the cache" in publisher.texts[0]


def test_nothing_is_shown_where_nothing_compiled(publisher, quick):
    line = LiveLine(lambda: None, shell=Shell(publisher))
    line.start()
    time.sleep(0.05)
    line.finish(None)
    assert not publisher.messages


def test_without_a_report_the_line_is_taken_away(publisher, quick):
    line = LiveLine(lambda: BUILD, shell=Shell(publisher))
    line.start()
    until(lambda: publisher.messages)
    line.finish(None)
    assert publisher.texts[-1] == ""
    assert publisher.messages[-1][3]


def test_updates_come_at_most_five_times_a_second_and_only_when_the_text_changes(publisher):
    ticks = iter(range(1_000_000))
    line = LiveLine(lambda: Activity("f", "0/0", "build", 1.0 + next(ticks), 0), shell=Shell(publisher))
    line.start()
    time.sleep(1.1)
    line.finish(None)
    times = [when for when, text, _, _ in publisher.messages if text]
    assert 2 <= len(times) <= 6
    assert min(later - sooner for sooner, later in itertools.pairwise(times)) > 0.15
    assert len(set(publisher.texts)) == len(publisher.texts)


def test_the_line_says_when_the_cell_runs_on_without_compiling(publisher, quick):
    activity = [BUILD]
    line = LiveLine(lambda: activity[0], shell=Shell(publisher))
    line.start()
    until(lambda: publisher.messages)
    activity[0] = None
    until(lambda: len(publisher.messages) == 2)
    activity[0] = BUILD
    until(lambda: len(publisher.messages) == 3)
    line.finish(FINAL)
    assert publisher.texts[1] == "nbcache: running the cell · last compiled train_step 0/1"
    assert publisher.texts[2] == publisher.texts[0]


def test_a_report_survives_a_cell_that_clears_its_output(publisher, quick):
    activity = [BUILD]
    line = LiveLine(lambda: activity[0], shell=Shell(publisher))
    line.start()
    until(lambda: publisher.messages)
    activity[0] = None
    publisher.clear_output()
    line.finish(FINAL)
    assert publisher.messages[-1][1] == "final report"
    assert not publisher.messages[-1][3]  # a new output: there is nothing left to update


def test_after_a_cell_has_cleared_its_output_no_line_comes_before_what_it_writes_next(
    publisher, quick, capsys
):
    line = LiveLine(lambda: BUILD, shell=Shell(publisher))
    line.start()
    line.reserve()
    until(lambda: publisher.messages)
    publisher.clear_output()
    seen = len(publisher.messages)
    print("the next frame")
    time.sleep(0.1)
    assert len(publisher.messages) == seen
    line.finish(FINAL)
    assert publisher.texts[seen:] == ["final report"]


def test_a_cell_that_clears_its_output_while_the_line_is_drawn_keeps_its_report(publisher, quick):
    drawing, drawn = threading.Event(), threading.Event()
    publish = publisher.publish

    def slowly(*arguments, **options):
        drawing.set()
        drawn.wait(0.05)
        publish(*arguments, **options)

    publisher.publish = slowly
    line = LiveLine(lambda: BUILD, shell=Shell(publisher))
    line.start()
    assert drawing.wait(60)
    publisher.clear_output()  # waits for the line to be drawn, then takes it away
    assert publisher.texts
    line.finish(FINAL)
    assert publisher.messages[-1][1:] == ("final report", None, False)


def test_a_sampler_that_raises_turns_the_line_off_but_not_the_report(publisher, quick):
    answers = iter([BUILD])
    line = LiveLine(lambda: next(answers), shell=Shell(publisher))
    line.start()
    until(lambda: publisher.messages)
    time.sleep(0.03)
    line.finish(FINAL)
    assert publisher.texts[1:] == ["", "final report"]


def test_a_sampler_that_hangs_does_not_hold_the_cell_for_long(publisher, quick, monkeypatch):
    monkeypatch.setattr(live_line, "JOIN", 0.05)
    released, entered = threading.Event(), threading.Event()

    def hang():
        entered.set()
        released.wait()
        return BUILD

    line = LiveLine(hang, shell=Shell(publisher))
    line.start()
    assert entered.wait(60)
    started = time.monotonic()
    line.finish(FINAL)
    assert time.monotonic() - started < 1
    released.set()
    line._thread.join(60)
    assert publisher.texts == ["final report"]


def test_a_display_that_fails_raises_nothing_into_the_cell(quick):
    line = LiveLine(lambda: BUILD, shell=Shell(Publisher(broken=True)))
    line.start()
    time.sleep(0.05)
    line.finish(FINAL)


def test_finishing_twice_shows_the_report_once_and_without_starting_too(publisher):
    line = LiveLine(lambda: None, shell=Shell(publisher))
    line.finish(FINAL)
    line.finish(FINAL)
    assert publisher.texts == ["final report"]


def test_a_terminal_has_one_line_that_is_gone_before_the_report(quick, capsys):
    terminal = Terminal()
    activity = [BUILD]
    line = LiveLine(lambda: activity[0], shell=object(), stream=terminal)
    line.start()
    until(lambda: terminal.lines)
    activity[0] = Activity("f", "1/0", "dynamo", 1.0, 3)
    until(lambda: len(terminal.lines) == 2)
    line.finish(FINAL)
    assert terminal.lines[1] == "nbcache: compiling f 1/0 · tracing · 1.0 s · 3 graphs done"
    assert "\n" not in terminal.getvalue()
    erased, width = terminal.getvalue().split("\r")[-2:], len(terminal.lines[1])
    assert erased == [" " * width, ""]
    assert capsys.readouterr().out == "final report\n"


def test_a_terminal_line_goes_as_soon_as_nothing_compiles_since_the_cell_may_print(quick):
    terminal = Terminal()
    activity = [BUILD]
    line = LiveLine(lambda: activity[0], shell=object(), stream=terminal)
    line.start()
    until(lambda: terminal.lines)
    activity[0] = None
    until(lambda: terminal.getvalue().endswith(" \r"))
    line.finish(None)


class Shared(Terminal):
    """A terminal that standard output and the line both go to."""

    @property
    def screen(self):
        rows = []
        for row in self.getvalue().split("\n"):
            seen = []
            for part in row.split("\r"):
                seen[: len(part)] = part
            rows.append("".join(seen).rstrip())
        return rows


def take_over(monkeypatch):
    """Return a terminal with standard output and error on it."""
    terminal = Shared()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    return terminal


def test_what_is_printed_while_the_line_stands_in_a_terminal_begins_on_a_clean_line(quick, monkeypatch):
    shared = take_over(monkeypatch)
    line = LiveLine(lambda: BUILD, shell=object(), stream=shared)
    line.start()
    for word in ("one", "two"):
        until(lambda: shared.screen[-1].startswith("nbcache: compiling"))
        print(word)
    line.finish(FINAL)
    assert shared.screen == ["one", "two", "final report", ""]


def test_the_line_is_not_drawn_over_a_bar_in_a_terminal_and_the_report_begins_below_it(quick, monkeypatch):
    shared = take_over(monkeypatch)
    line = LiveLine(lambda: BUILD, shell=object(), stream=shared)
    line.start()
    until(lambda: shared.screen[-1].startswith("nbcache: compiling"))
    shared.write("\r 10%|#")
    time.sleep(0.05)
    shared.write("\r 50%|#####")
    time.sleep(0.05)
    line.finish(FINAL)
    assert shared.screen == [" 50%|#####", "final report", ""]


def test_where_there_is_no_terminal_only_the_report_is_printed(quick, capsys):
    pipe = io.StringIO()
    line = LiveLine(lambda: BUILD, shell=object(), stream=pipe)
    line.start()
    time.sleep(0.05)
    line.finish(FINAL)
    assert pipe.getvalue() == ""
    assert capsys.readouterr().out == "final report\n"


def test_a_terminal_that_only_knows_ascii_gets_the_report_all_the_same(monkeypatch):
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", output)
    LiveLine(lambda: None, shell=object(), stream=io.StringIO()).finish(Rendered("2 hits · 3 s", ""))
    assert output.buffer.getvalue() == b"2 hits ? 3 s\n"


SETUP = """
import time
from IPython.display import clear_output
from tqdm import tqdm
from nbcache.core.reports import Activity
from nbcache.ui.ipython.live_line import LiveLine
from nbcache.ui.display.render import Rendered

started = None  # when the fake compile began
line = None
depth = 0  # a cell under %%capture is a cell in a cell
shell = get_ipython()

def sample():
    if started is not None:
        return Activity("step", "0/0", "build", time.monotonic() - started, 0)

def before(info):
    global depth, line
    depth += 1
    if depth == 1:
        line = LiveLine(sample)
        line.start()

def after(result):
    global depth, started
    depth = max(0, depth - 1)
    if depth or line is None:
        return
    compiled, started = started is not None, None
    line.finish(Rendered("report", "<b>report</b>") if compiled else None)

shell.events.register("pre_run_cell", before)
shell.events.register("post_run_cell", after)
"""
CELLS = {
    "slow": "started = time.monotonic()\ntime.sleep(1.3)\nprint('after')\nprint('and after')",
    "loop": "for i in range(4):\n    print(i)\n    started = time.monotonic() - 1\n    time.sleep(0.3)",
    "bar": "started = time.monotonic()\nfor i in tqdm(range(4)):\n    time.sleep(0.3)",
    "late bar": "for i in tqdm(range(4)):\n    started = started or time.monotonic()\n    time.sleep(0.3)",
    "system": "started = time.monotonic()\n!echo from a process; sleep 1; echo and again",
    "result": "started = time.monotonic()\ntime.sleep(0.8)\n'a value'",
    "quick": "started = time.monotonic()\nprint('quick')",
    "silent": "print('silent')\ntime.sleep(0.5)",
    "fails": "started = time.monotonic()\ntime.sleep(0.8)\n1 / 0",
    "async": "import asyncio\nstarted = time.monotonic()\nawait asyncio.sleep(0.8)\nprint('awaited')",
    "clears": "started = time.monotonic()\ntime.sleep(0.8)\nclear_output()\nprint('cleared')",
    "captured": "%%capture out\nstarted = time.monotonic()\ntime.sleep(0.8)\nprint('kept')",
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
    assert 2 <= len(updates) <= 6
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
    assert outputs(executed["result"]) == ["", "'a value'", "report"]


@OF_ONE_KERNEL
@pytest.mark.compile
def test_a_notebook_with_an_emptied_line_is_valid_and_makes_a_page(executed):
    from nbconvert import HTMLExporter

    notebook = nbformat.v4.new_notebook(cells=[executed["slow"]])
    nbformat.validate(notebook)
    page, _ = HTMLExporter().from_notebook_node(notebook)
    assert "and after" in page and "<b>report</b>" in page and "compiling step" not in page


@OF_ONE_KERNEL
@pytest.mark.compile
def test_in_a_kernel_a_quick_cell_gets_its_report_last(executed):
    assert outputs(executed["quick"]) == ["quick\n", "report"]


@OF_ONE_KERNEL
@pytest.mark.compile
def test_in_a_kernel_a_cell_that_compiles_nothing_is_left_alone(executed):
    assert outputs(executed["silent"]) == ["silent\n"]
    assert outputs(executed["next"]) == ["next\n"]


@OF_ONE_KERNEL
@pytest.mark.compile
def test_in_a_kernel_a_cell_that_raises_still_gets_its_report(executed):
    assert outputs(executed["fails"]) == ["", "ZeroDivisionError", "report"]


@OF_ONE_KERNEL
@pytest.mark.compile
def test_in_a_kernel_a_cell_that_awaits_gets_its_own_line(executed):
    assert outputs(executed["async"]) == ["", "awaited\n", "report"]


@OF_ONE_KERNEL
@pytest.mark.compile
def test_in_a_kernel_a_report_survives_clear_output(executed):
    assert outputs(executed["clears"]) == ["cleared\n", "report"]


@OF_ONE_KERNEL
@pytest.mark.compile
def test_in_a_kernel_a_captured_cell_shows_its_report(executed):
    assert outputs(executed["captured"]) == ["", "report"]


def on_screen(written):
    """Return the lines that a terminal shows in the end of what was written to it, without colours."""
    terminal = Shared()
    terminal.write(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.replace("\r\n", "\n")))
    return terminal.screen


@pytest.mark.compile
def test_in_a_terminal_prints_and_bars_stand_on_clean_lines_and_the_report_below(tmp_path):
    set_up = tmp_path / "set_up.py"
    set_up.write_text(SETUP)
    arguments = ["-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor", "-i", str(set_up)]
    environ = {**os.environ, "IPYTHONDIR": str(tmp_path), "COLUMNS": "100", "TERM": "xterm"}
    begin = "started = time.monotonic(); time.sleep(0.9)"
    cells = [
        f"{begin}; print('one'); time.sleep(0.5); print('two')",
        f"{begin}; bar = [time.sleep(0.2) for i in tqdm(range(3), ncols=40)]",
        f"{begin}; print('no end', end='')",
    ]
    shown = []
    with pexpect.spawn(sys.executable, arguments, env=environ, encoding="utf-8", timeout=60) as terminal:
        terminal.expect_exact("In [")
        for cell in cells:
            terminal.sendline(cell)
            terminal.expect_exact("\r\nIn [")
            shown.append(terminal.before)
    for written in shown:
        assert "nbcache: compiling step 0/0" in written
    lines = [[line for line in on_screen(written) if line][1:] for written in shown]
    assert lines[0] == ["one", "two", "report"]
    assert len(lines[1]) == 2 and lines[1][0].startswith("100%|") and lines[1][1] == "report"
    assert lines[2] == ["no end", "report"]
