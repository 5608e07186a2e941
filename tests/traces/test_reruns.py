"""Which traces torch made after what had run: kept by function, and bounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from nbcache.core.key import sha256
from nbcache.core.model import Artifact
from nbcache.kernel.program import Program
from nbcache.traces.kernel_traces import Reruns


class Kernel:
    """What the notes of a kernel are stored by: a session, as far as they need one."""

    def __init__(self, stored: dict[str, bytes]) -> None:
        self.program = Program()
        self.cache = self
        self._stored = stored
        self.made: list[bool] = []

    def find(self, type: str, key: str) -> Sequence[Artifact]:
        return [Artifact(type, key, self._stored[key])] if key in self._stored else []

    def record(self, type: str, key: str, content: bytes, *, made: bool) -> None:
        self._stored[key] = content
        self.made.append(made)


@pytest.fixture(autouse=True)
def without_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the modules of this process, of which other tests may have removed the files."""
    monkeypatch.setattr("nbcache.kernel.program._own_modules", lambda: ())


def kernel(stored: dict[str, bytes], *cells: str) -> tuple[Any, Reruns]:
    session: Any = Kernel(stored)
    for each in cells:
        session.program.note_cell(each)
    return session, Reruns(session)


TRACE, OTHER = sha256(b"a trace"), sha256(b"another")


def test_a_trace_is_for_kernels_that_have_run_the_same_and_met_the_function_as_often() -> None:
    stored: dict[str, bytes] = {}
    _, first = kernel(stored, "a = 1")
    place = first.place("key")
    assert first.traces_at("key", place) == set()
    first.note("key", place, TRACE)
    first.note("key", first.place("key"), OTHER)

    session, again = kernel(stored, "a = 1  # the same")
    assert [again.traces_at("key", again.place("key")) for _ in range(3)] == [{TRACE}, {OTHER}, set()]
    again.note("key", place, TRACE)
    assert session.made == [False]
    assert again.traces_at("another key", place) == set()
    for cells in (("a = 2",), ("a = 1", "b = 1"), ()):
        _, other = kernel(stored, *cells)
        assert other.traces_at("key", other.place("key")) == set()


def test_the_newest_are_kept_and_what_is_damaged_is_left_out() -> None:
    stored = {"key": b"\xff\n1 2\n" + f"{TRACE} {OTHER}".encode()}
    _, notes = kernel(stored)
    assert notes.traces_at("key", TRACE) == {OTHER}
    for number in range(100):
        notes.note("key", sha256(str(number).encode()), TRACE)
    _, later = kernel(stored)
    kept = [bool(later.traces_at("key", sha256(str(number).encode()))) for number in range(100)]
    assert kept == [False] * 36 + [True] * 64
    assert later.traces_at("key", TRACE) == set()


def test_after_a_file_was_run_there_is_no_place() -> None:
    _, notes = kernel({}, "%run part.py")
    assert notes.place("key") == ""
