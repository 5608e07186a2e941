"""Nurseries: which processes `nbcache kernel stop` ends, and requests that no launcher sends."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.nurseries import Place

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
