"""Files that are replaced whole: by two at once, by one that is killed, on a full disk."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nbcache.core.errors import NbcacheError, SnapshotError
from nbcache.core.files import read, update

MAX = 1 << 30

ADD = """
import sys, time
from pathlib import Path
from nbcache.core.files import update
for number in range(int(sys.argv[3])):
    update(Path(sys.argv[1]), lambda before: (before or b"") + sys.argv[2].encode(), max_bytes=1 << 30)
    print(number, flush=True)
"""


def adding(path: Path, text: str, times: int = 1) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", ADD, str(path), text, str(times)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_processes_that_update_one_file_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "quickstart.nbcache"
    writers = [adding(path, text, 50) for text in "ab"]
    for writer in writers:
        assert writer.communicate(timeout=60)[1] == ""
    assert sorted(path.read_text()) == ["a"] * 50 + ["b"] * 50
    assert [*tmp_path.iterdir()] == [path]


def test_a_writer_that_is_killed_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "quickstart.nbcache"
    path.write_text("before ")
    line = "x" * 100_000
    for number in range(6):
        writer = adding(path, line, 1000)
        assert writer.stdout is not None
        for _ in range(1 + 5 * number):
            writer.stdout.readline()
        writer.kill()
        writer.communicate(timeout=60)
        text = path.read_text()
        assert text.startswith("before ")
        assert len(text.removeprefix("before ")) % len(line) == 0
    (tmp_path / f".{path.name}.killed.tmp").write_bytes(b"being written")
    left = [file for file in tmp_path.iterdir() if file != path]
    for file in left:
        os.utime(file, (0, 0))
    update(path, lambda before: b"after", max_bytes=MAX)
    assert [*tmp_path.iterdir()] == [path]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "quickstart.nbcache"
    path.write_bytes(b"before")
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n" + ADD
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), "x" * 2000, "1"], capture_output=True, text=True, check=False
    )
    assert "the file cannot be written" in done.stderr
    assert path.read_bytes() == b"before"
    assert [*tmp_path.iterdir()] == [path]


def test_an_update_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "quickstart.nbcache"
    assert update(path, lambda before: b"one", max_bytes=MAX)
    written = path.stat()
    assert not update(path, lambda before: before or b"", max_bytes=MAX)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)


def test_an_update_keeps_the_mode_and_follows_links(tmp_path: Path) -> None:
    path, link = tmp_path / "quickstart.nbcache", tmp_path / "link.nbcache"
    path.write_bytes(b"one")
    path.chmod(0o640)
    link.symlink_to(path)
    update(link, lambda before: (before or b"") + b"two", max_bytes=MAX)
    assert link.is_symlink()
    assert path.read_bytes() == b"onetwo"
    assert path.stat().st_mode & 0o777 == 0o640


def test_what_fails_while_an_update_is_made_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "quickstart.nbcache"
    path.write_bytes(b"before")

    def change(before: bytes | None) -> bytes:
        raise NbcacheError("no")

    with pytest.raises(NbcacheError):
        update(path, change, max_bytes=MAX)
    assert path.read_bytes() == b"before"
    assert [*tmp_path.iterdir()] == [path]


def test_a_path_that_cannot_be_used_says_so(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="cannot be read"):
        read(tmp_path / "absent.nbcache", max_bytes=MAX)
    with pytest.raises(SnapshotError, match="can be stored there"):
        update(tmp_path / "absent" / "quickstart.nbcache", lambda before: b"", max_bytes=MAX)


def test_a_file_that_is_too_long_says_so(tmp_path: Path) -> None:
    path = tmp_path / "quickstart.nbcache"
    path.write_bytes(bytes(11))
    with pytest.raises(SnapshotError, match="longer than 10 bytes"):
        read(path, max_bytes=10)
    with pytest.raises(SnapshotError, match="longer than 10 bytes"):
        update(path, lambda before: b"", max_bytes=10)
    assert path.stat().st_size == 11


def test_nothing_is_read_of_a_file_that_is_too_long(tmp_path: Path) -> None:
    path = tmp_path / "long.nbcache"
    with path.open("wb") as stream:
        stream.truncate(1 << 36)
    began = time.process_time()
    for _ in range(1000):
        with pytest.raises(SnapshotError, match="longer than"):
            read(path, max_bytes=MAX)
    assert time.process_time() - began < 2.0
