"""The answer of a command, and functions with which commands print, ask and read snapshots."""

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
    """False if the answer is no; the command then exits with 1."""

    @property
    def text(self) -> str:
        """The lines without control characters and line breaks, so that foreign names cannot begin a line."""
        return "\n".join(clean(line.replace("\n", " ")) for line in self.lines)


def write(text: str) -> None:
    """Print text without control characters, as other people may have written parts of it."""
    print(clean(text))


def say(text: str, end: str = "\n") -> None:
    """Print text to the standard error, as `write` does."""
    print(clean(text), end=end, file=sys.stderr, flush=True)


def judge_of(settings: Settings) -> Judge:
    return Judge(lambda: Keyring(settings.trust_dir), lambda: settings.trust)


def received_from(source: str, settings: Settings) -> list[Received]:
    """Return the undamaged versions of the snapshots at `source`; NbcacheError if all are damaged."""
    readable, problems = versions(source, Keyring(settings.trust_dir))
    if not readable:
        raise problems[0]
    return readable


def is_snapshot(data: bytes, keyring: Keyring) -> bool:
    try:
        return bool(receive(data, keyring, where=""))
    except NbcacheError:
        return False


def agree(question: str, refusal: str = "nothing was stored") -> None:
    """Ask on the terminal; SnapshotError if the answer is not yes, or the input is no terminal."""
    if not sys.stdin.isatty():
        raise SnapshotError("nbcache cannot ask here", next_step="if you are sure, add --yes")
    say(question, end="")
    try:
        answer = input()
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise SnapshotError(refusal)


def cell_titles(received: Received) -> dict[str, str]:
    """Return cell digest → title, from the notebook that is the source or is beside it."""
    place, name = Path(received.where), Path(received.snapshot.notebook).name
    beside = [place.with_name(name)] if name else []
    for notebook in [place] if place.suffix == ".ipynb" else [*beside, place.with_suffix(".ipynb")]:
        try:
            if notebook.suffix == ".ipynb" and notebook.is_file():
                cells = cells_of(read(notebook, max_bytes=MAX_NOTEBOOK_BYTES))
                return {cell.digest: f"{cell.label} {cell.title}" for cell in cells if cell.title}
        except (NbcacheError, OSError):
            continue  # unreadable: its cells are shown by their digests
    return {}
