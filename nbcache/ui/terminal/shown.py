"""The answer of a command, and what several commands print, ask and read."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbcache.core.errors import NbcacheError, SnapshotError
from nbcache.core.files import read
from nbcache.core.settings import Settings
from nbcache.core.text import clean
from nbcache.kernel.explain.plan import cells_of
from nbcache.sharing.provenance import Judge
from nbcache.sharing.snapshots.sources import MAX_NOTEBOOK_BYTES, versions
from nbcache.sharing.snapshots.verify import Received, receive
from nbcache.sharing.trust import Keyring


@dataclass(frozen=True, slots=True)
class Shown:
    """The answer of a verb, for people and for programs."""

    lines: list[str]
    data: Any
    ok: bool = True
    """False where the answer is no: the command then exits with 1."""

    @property
    def text(self) -> str:
        """The lines as a terminal may show them: names that others chose cannot begin a line."""
        return "\n".join(clean(line.replace("\n", " ")) for line in self.lines)


def write(text: str) -> None:
    """Print text, which others may have written in part."""
    print(clean(text))


def say(text: str, end: str = "\n") -> None:
    """Print text to the standard error, as `write` does."""
    print(clean(text), end=end, file=sys.stderr, flush=True)


def judge_of(settings: Settings) -> Judge:
    return Judge(lambda: Keyring(settings.trust_dir), lambda: settings.trust)


def received_from(source: str, settings: Settings) -> list[Received]:
    """Return the versions of the snapshots at `source` that are whole; NbcacheError where none is."""
    found, problems = versions(source, Keyring(settings.trust_dir))
    if not found:
        raise problems[0]
    return found


def is_snapshot(data: bytes, keyring: Keyring) -> bool:
    try:
        return bool(receive(data, keyring, where=""))
    except NbcacheError:
        return False


def agree(question: str, refusal: str = "nothing was stored") -> None:
    """Ask on the terminal; SnapshotError where the answer is not yes, or nobody is there to give one."""
    if not sys.stdin.isatty():
        raise SnapshotError("nobody can be asked here", next_step="if you are sure, add --yes")
    say(question, end="")
    try:
        answer = input()
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise SnapshotError(refusal)


def cell_titles(received: Received) -> dict[str, str]:
    """Return the titles of cells by their digests, from the notebook that is the source or lies beside it."""
    place, name = Path(received.where), Path(received.snapshot.notebook).name
    beside = [place.with_name(name)] if name else []
    for notebook in [place] if place.suffix == ".ipynb" else [*beside, place.with_suffix(".ipynb")]:
        try:
            if notebook.suffix == ".ipynb" and notebook.is_file():
                cells = cells_of(read(notebook, max_bytes=MAX_NOTEBOOK_BYTES))
                return {cell.digest: f"{cell.label} {cell.title}" for cell in cells if cell.title}
        except (NbcacheError, OSError):
            continue  # it cannot be read: cells go by their digests
    return {}
