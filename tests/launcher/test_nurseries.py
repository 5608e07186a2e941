"""Nurseries: which processes `nbcache kernel stop` ends, and requests that no launcher sends."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from nbcache.launcher import protocol
from nbcache.ui.terminal.parser import main
from support.nurseries import Place, Start, nursery_of

pytestmark = [pytest.mark.compile, pytest.mark.xdist_group("files of packages")]


def frame(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


FORK = {"ask": "fork", "arguments": [], "path": [], "environ": {}, "folder": "/", "umask": 0, "ignored": []}
BAD = [
    frame(b"[" * 100_000),
    frame(b"{}"),
    frame(b"1"),
    frame(b"\xff"),
    frame(b""),
    frame(b'{"ask": "end"}'),
    frame(json.dumps(FORK).encode()),
    frame(json.dumps({**FORK, "blocked": [], "folder": []}).encode()),
    frame(json.dumps({**FORK, "blocked": [], "folder": "\0"}).encode()),
    b"\xff\xff\xff\xff",
]


def test_bad_requests_are_answered_and_leave_nothing_open_and_the_nursery_lives_on(
    place: Place, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    nursery = psutil.Process(nursery_of(start()))
    monkeypatch.setenv("XDG_RUNTIME_DIR", place.environ["XDG_RUNTIME_DIR"])
    answers = {name: protocol.request(name, "status") for name in protocol.names()}
    name = next(name for name, answer in answers.items() if answer and answer["process"] == nursery.pid)
    open_files = nursery.num_fds()
    with ExitStack() as stack, open(os.devnull) as file:

        def begin(content: bytes) -> socket.socket:
            connection = stack.enter_context(protocol.ask(name, 60.0))
            socket.send_fds(connection, [content], [file.fileno()] * 3)
            return connection

        def refusal(connection: socket.socket) -> str:
            answer: dict[str, Any] = protocol.receive(connection)[0]
            assert not answer["forked"] and connection.recv(1) == b""
            return str(answer["why"])

        half_sent = begin(frame(b"{}")[:5])
        for content in BAD:
            assert "could not answer" in refusal(begin(content))
        kernel = start()
        assert nursery_of(kernel) == nursery.pid
        assert "timed out" in refusal(half_sent)
        assert nursery.num_fds() <= open_files  # the first count may include the answered connection


def test_variables_that_libraries_read_at_import_have_a_nursery_of_their_own(tmp_path: Path) -> None:
    place = Place(tmp_path)
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    library = next((Path(spec.origin).parent / "lib").glob("libgomp*.so*"), None)
    place.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_CORETYPE": "Haswell"}
    if library is not None:  # it comes with torch's builds for Linux
        place.environ["LD_PRELOAD"] = str(library)
    place.nbcache("start")
    kernel = place.start()
    other = place.start(OPENBLAS_CORETYPE="Prescott")
    try:
        assert nursery_of(kernel) and kernel.ask("__import__('torch').get_num_threads()") == 1
        assert nursery_of(other) == 0
        assert "there was no nursery for its environment" in place.nbcache("status")
    finally:
        for started in (kernel, other):
            started.client.stop_channels()
            started.manager.shutdown_kernel(now=True)
        place.nbcache("stop")


CHANGING = """\
import os, sys
if "nbcache.launcher.nursery" in " ".join(sys.orig_argv):
    class Change:
        def find_spec(name, path=None, target=None):
            if name == "ipykernel.kernelapp":
                os.utime(__file__)  # an installer changes a file meanwhile
    sys.meta_path.insert(0, Change)
"""


def test_a_file_that_changes_while_a_nursery_imports_ends_it_and_the_command_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    added = tmp_path / "added"
    added.mkdir()
    (added / "sitecustomize.py").write_text(CHANGING)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{added}:{os.environ.get('PYTHONPATH', '')}")

    assert main(["kernel", "start"]) == 1

    assert "a package's file changed" in capsys.readouterr().err


HOSTILE = "/evil\n\x1b[200~rm -rf\x9b1m\u202e.py has changed"


def test_no_file_name_steers_the_terminal_that_shows_the_launchers_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    protocol.note_ordinary(HOSTILE)

    assert main(["kernel", "status"]) == 0

    (line,) = [line for line in capsys.readouterr().out.splitlines() if "rm -rf" in line]
    assert line.startswith("last kernel that was not forked") and line.isprintable()


def open_inodes(process: psutil.Process) -> set[int]:
    """Return the numbers of the files that a process of Python's has open."""
    try:
        files = [*Path(f"/proc/{process.pid}/fd").iterdir()] if "python" in process.name() else []
        return {file.stat().st_ino for file in files if file.exists()}
    except OSError:
        return set()


HIGH = 1500
OPENING = f"""\
import os, sys
if "nbcache.launcher.nursery" in " ".join(sys.orig_argv):
    os.dup2(os.open(os.devnull, os.O_RDONLY), {HIGH + 1})
"""


def test_a_file_with_a_high_number_reaches_no_nursery_and_no_forked_kernel(tmp_path: Path) -> None:
    place, added = Place(tmp_path), tmp_path / "added"
    added.mkdir()
    (added / "sitecustomize.py").write_text(OPENING)
    place.environ["PYTHONPATH"] = f"{added}:{place.environ['PYTHONPATH']}"
    with open(os.devnull) as file:
        os.dup2(file.fileno(), HIGH)
        try:
            first = place.start_with(pass_fds=(HIGH,))  # which makes it an ordinary kernel
        finally:
            os.close(HIGH)
    assert nursery_of(first) == 0 and first.ask(f"__import__('os').path.exists('/proc/self/fd/{HIGH}')")
    while not (locks := {lock.stat().st_ino for lock in tmp_path.glob("*/*.lock")}):
        time.sleep(0.05)
    (nursery,) = (each for each in psutil.process_iter() if locks & open_inodes(each))
    assert not Path(f"/proc/{nursery.pid}/fd/{HIGH}").exists()
    assert "about to end: 1 nursery" in place.nbcache("stop")
    nursery.wait(60.0)
    place.nbcache("start")
    kernel = place.start()
    try:
        assert Path(f"/proc/{nursery_of(kernel)}/fd/{HIGH + 1}").exists()
        assert not kernel.ask(f"__import__('os').path.exists('/proc/self/fd/{HIGH + 1}')")
    finally:
        for started in (first, kernel):
            started.client.stop_channels()
            started.manager.shutdown_kernel(now=True)
        place.nbcache("stop")
