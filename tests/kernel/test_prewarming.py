"""Slices, idle time and what surrounds imports: without torch."""

import asyncio
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nbcache.kernel.prewarming import BackgroundProcess, Pause, Prewarming, Slice, Steps
from nbcache.torch_bridge.gc_pause import HeapAside, pause
from nbcache.ui.ipython.cells import IdleTime


def prewarming(steps: Callable[[], Steps], clock: Callable[[], float] = lambda: 0.0) -> Prewarming:
    errors: list[tuple[str, Exception]] = []
    made = Prewarming(steps, lambda what, error: errors.append((what, error)), clock)
    made.errors = errors  # type: ignore[attr-defined]
    return made


def test_each_step_runs_one_slice_and_its_time_is_kept() -> None:
    now, ran = [0.0], []

    def take(seconds: float) -> None:
        now[0] += seconds
        ran.append(seconds)

    def steps() -> Steps:
        yield Slice("first", lambda: take(0.3))
        yield Pause.SHORT
        yield Slice("second", lambda: take(0.1))

    warm = prewarming(steps, lambda: now[0])
    assert warm.state == "off"

    assert warm.step() is None and ran == [0.3]
    assert warm.step() is Pause.SHORT and warm.state == "running"
    assert warm.step() is None and ran == [0.3, 0.1]
    assert warm.step() is Pause.CELL and warm.state == "done"
    assert [(each.name, each.seconds) for each in warm.slices] == [
        ("first", pytest.approx(0.3)),
        ("second", pytest.approx(0.1)),
    ]
    assert warm.seconds == pytest.approx(0.4)


def test_what_waits_for_a_cell_goes_on_after_it() -> None:
    def steps() -> Steps:
        yield Pause.CELL
        yield Slice("later", lambda: None)

    warm = prewarming(steps)
    assert warm.step() is Pause.CELL and warm.state == "done"
    assert warm.step() is None and warm.state == "running"


def test_a_slice_that_raises_ends_it_and_is_told_once() -> None:
    def fail() -> None:
        raise ValueError("no")

    def steps() -> Steps:
        yield Slice("broken", fail)
        yield Slice("never", lambda: pytest.fail("ran after a failure"))

    warm = prewarming(steps)
    assert [warm.step(), warm.step()] == [Pause.CELL] * 2
    assert warm.state == "failed"
    assert [(what, str(error)) for what, error in warm.errors] == [("prewarming (broken)", "no")]


def test_stopping_closes_the_steps_and_the_next_step_begins_anew() -> None:
    closed = []

    def steps() -> Iterator[Slice | Pause]:
        try:
            yield Pause.SHORT
            yield Slice("never", lambda: pytest.fail("ran after the end"))
        finally:
            closed.append(True)

    warm = prewarming(steps)
    warm.step()
    warm.stop()
    assert closed == [True] and warm.state == "off"
    assert warm.step() is Pause.SHORT and warm.state == "running"  # from the beginning


def test_idle_time_ends_with_a_cell_and_begins_after_it_unless_the_next_one_follows_at_once() -> None:
    calls: list[str] = []

    def work(call: str, answer: float | None) -> float | None:
        calls.append(call)
        return answer

    async def notebook() -> None:
        idle = IdleTime(asyncio.get_running_loop(), lambda: work("idle", 0.0))
        for _ in range(5):
            idle.begin()
            await asyncio.sleep(0.001)
            idle.end()
            await asyncio.sleep(0.05)
        assert calls == []
        idle.begin()
        await asyncio.sleep(0.3)
        idle.end()
        calls.append("cell")
        await asyncio.sleep(0.2)  # a cell that awaits: the loop is free, and still no idle time
        calls.append("end of cell")
        idle.begin()
        await asyncio.sleep(0.3)
        idle.end()
        waiting = IdleTime(asyncio.get_running_loop(), lambda: work("none waits for another cell", None))
        waiting.begin()
        await asyncio.sleep(0.4)

    asyncio.run(notebook())
    cell = calls.index("cell")
    assert "idle" in calls[:cell]
    assert calls[cell + 1] == "end of cell"
    assert "idle" in calls[cell + 1 :]
    assert calls.count("none waits for another cell") == 1


def test_the_collector_rests_and_is_as_before_afterwards() -> None:
    with pause():
        assert not gc.isenabled()
        with pause():
            pass
        assert not gc.isenabled()
    assert gc.isenabled() and gc.get_freeze_count() == 0
    gc.disable()
    try:
        with pause():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="gc.freeze is CPython's")
def test_the_heap_is_aside_from_the_first_begin_to_the_last_end() -> None:
    heap = HeapAside()
    heap.begin()
    heap.begin()
    heap.end()
    assert gc.get_freeze_count() > 0
    heap.end()
    assert gc.get_freeze_count() == 0
    heap.end()  # one too many, as after a reset
    heap.begin()
    heap.reset()
    assert gc.get_freeze_count() == 0


def test_what_the_user_has_frozen_stays_frozen() -> None:
    gc.freeze()
    try:
        heap = HeapAside()
        heap.begin()
        heap.end()
        with pause():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


HOLDS_A_LOCK = """
import fcntl, sys
with open(sys.argv[1], "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.readline()
print("released", flush=True)
sys.stdin.readline()
"""


def test_a_background_process_is_not_stopped_while_it_holds_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell that needs the lock would wait for ever."""
    popen = partial(subprocess.Popen, bufsize=0)
    piped: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": None}
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: popen(command, **(options | piped)))
    background = BackgroundProcess([sys.executable, "-c", HOLDS_A_LOCK, str(tmp_path / "lock")], os.environ)
    process = background._process
    assert process.stdin is not None and process.stdout is not None
    with process:
        assert process.stdout.readline() == b"held\n"
        assert not background.pause()
        process.stdin.write(b"\n")
        assert process.stdout.readline() == b"released\n"
        assert background.pause()
        background.end(60)
        assert background.exit_status() is not None
