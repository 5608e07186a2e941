"""Nurseries: which processes `nbcache kernel stop` ends, and requests that no launcher sends."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from nbcache.launcher import protocol
from nbcache.ui.terminal.parser import main
from support.nurseries import Place, Start, nursery_of
from support.redis_servers import wait_until

pytestmark = [pytest.mark.compile, pytest.mark.xdist_group("files of packages")]


def test_stop_ends_no_process_but_a_nursery_that_has_the_lock(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.nbcache("status")
    folder = tmp_path / f"nbcache-kernels-{os.geteuid()}"
    code = "import sys; print(flush=True); sys.stdin.read()"
    with ExitStack() as stack:
        pipe = subprocess.PIPE
        process = stack.enter_context(
            # the last words are those of a nursery's command
            subprocess.Popen(
                [sys.executable, "-c", code, "nbcache.launcher.nursery"], stdin=pipe, stdout=pipe
            )
        )
        assert process.stdout is not None
        process.stdout.readline()
        contents = {
            "other": str(process.pid),
            "one": "1",
            "all": "-1",
            "word": "?",
            "huge": "9" * 30,
            "none": "",
        }
        for name, content in contents.items():
            lock = stack.enter_context((folder / f"{name}.lock").open("w"))
            lock.write(f"{content}\n")
            lock.flush()
            fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / "old.lock").write_text(str(process.pid))  # of a nursery that has ended
        (folder / "folder.lock").mkdir()
        (folder / "link.lock").symlink_to("/dev/zero")

        lines = place.nbcache("stop").splitlines()
        assert lines[0] == "ended: 0 nurseries"
        assert lines[1:] == [
            f"not ended: {folder / name}.lock names no nursery of yours"
            for name in sorted([*contents, "link"])
        ]
        assert process.poll() is None
        place.nbcache("uninstall")
        assert process.poll() is None


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

        half_sent = [begin(frame(b"{}")[:length]) for length in (1, 4, 5) * 20]
        for content in BAD:
            assert "could not answer" in refusal(begin(content))
        kernel = start()
        assert nursery_of(kernel) == nursery.pid
        reasons = [refusal(connection) for connection in half_sent]
        assert {*reasons} == {"too many others have asked since", "the request did not arrive in time"}
        # the nursery reads /proc/meminfo after each request; the first count may include a connection
        wait_until(lambda: nursery.num_fds() <= open_files, "the nursery has closed what it was sent")


def test_variables_that_libraries_read_at_import_have_a_nursery_of_their_own(own_place: Place) -> None:
    place = own_place
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    library = next((Path(spec.origin).parent / "lib").glob("libgomp*.so*"), None)
    place.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_CORETYPE": "Haswell"}
    if library is not None:  # it comes with torch's builds for Linux
        place.environ["LD_PRELOAD"] = str(library)
    place.nbcache("start")
    kernel = place.start()
    other = place.start(OPENBLAS_CORETYPE="Prescott")
    assert nursery_of(kernel) and kernel.ask("__import__('torch').get_num_threads()") == 1
    assert nursery_of(other) == 0
    assert "there was no nursery for its environment" in place.nbcache("status")


CHANGING = """\
import os, pathlib, sys
if "nbcache.launcher.nursery" in " ".join(sys.orig_argv):
    class Change:
        def find_spec(name, path=None, target=None):
            began = pathlib.Path(__file__).with_name(f"began-{os.getpid()}")
            if name == "ipykernel.kernelapp":
                began.touch()
                if len([*began.parent.glob("began-*")]) <= TIMES:  # an installer changes a file meanwhile
                    os.utime(__file__)
    sys.meta_path.insert(0, Change)
"""


def with_site(place: Place, code: str) -> Path:
    """Run some code at the start of each interpreter of an environment; return the code's folder."""
    added = place.folder / "added"
    added.mkdir()
    (added / "sitecustomize.py").write_text(code)
    place.environ["PYTHONPATH"] = f"{added}:{place.environ['PYTHONPATH']}"
    return added


def test_a_file_that_changes_while_a_nursery_imports_costs_another_try(own_place: Place) -> None:
    added = with_site(own_place, CHANGING.replace("TIMES", "1"))
    assert own_place.nbcache("start").startswith("ready: nursery")
    assert len([*added.glob("began-*")]) == 2


def test_where_each_try_ends_the_command_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    tries = tmp_path / "tries"
    code = f"open({str(tries)!r}, 'a').write('.')"
    monkeypatch.setattr(protocol, "nursery_command", lambda options: [sys.executable, "-c", code])

    assert main(["kernel", "start"]) == 1

    assert tries.read_text() == "..."
    assert "a nursery, ended 3 times" in capsys.readouterr().err


HOSTILE = "/evil\n\x1b[200~rm -rf\x9b1m\u202e.py has changed"


def test_no_file_name_steers_the_terminal_that_shows_the_launchers_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    protocol.note_ordinary(HOSTILE)

    assert main(["kernel", "status"]) == 0

    (line,) = [line for line in capsys.readouterr().out.splitlines() if "rm -rf" in line]
    assert line.startswith("last kernel that was not forked") and line.isprintable()


HIGH = 1500
OPENING = f"""\
import os, sys
if "nbcache.launcher.nursery" in " ".join(sys.orig_argv):
    os.dup2(os.open(os.devnull, os.O_RDONLY), {HIGH + 1})
"""


def test_a_file_with_a_high_number_reaches_no_nursery_and_no_forked_kernel(own_place: Place) -> None:
    place = own_place
    with_site(place, OPENING)
    with open(os.devnull) as file:
        os.dup2(file.fileno(), HIGH)
        try:
            first = place.start_with(pass_fds=(HIGH,))  # which makes it an ordinary kernel
        finally:
            os.close(HIGH)
    assert nursery_of(first) == 0 and first.ask(f"__import__('os').path.exists('/proc/self/fd/{HIGH}')")
    locks = place.folder.glob
    wait_until(lambda: any(lock.stat().st_size for lock in locks("*/*.lock")), "a nursery starts")
    lock = next(lock for lock in locks("*/*.lock") if lock.stat().st_size)
    assert not Path(f"/proc/{int(lock.read_text())}/fd/{HIGH}").exists()
    place.nbcache("stop")  # else it would wait for an idle processor before it imports more
    place.nbcache("start")
    kernel = place.start()
    assert Path(f"/proc/{nursery_of(kernel)}/fd/{HIGH + 1}").exists()
    assert not kernel.ask(f"__import__('os').path.exists('/proc/self/fd/{HIGH + 1}')")
