"""Commands on notebooks: attach, detach, extract, warm, run, and `verify --traces`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nbcache.core.errors import SnapshotError
from nbcache.core.files import read, update
from nbcache.core.settings import Settings
from nbcache.core.text import NOTHING, counted, one_line, size
from nbcache.core.trust import Keyring
from nbcache.snapshots import in_notebook
from nbcache.snapshots.build import united
from nbcache.snapshots.file import MAX_SNAPSHOT_BYTES
from nbcache.snapshots.sources import MAX_NOTEBOOK_BYTES, beside
from nbcache.snapshots.verify import receive
from nbcache.torch_bridge.portable import chosen
from nbcache.ui.display.words import missed_lines
from nbcache.ui.locate import opened_by
from nbcache.ui.terminal import headless
from nbcache.ui.terminal.shown import Shown, is_snapshot, say

_LONGEST_NOTICE = 600
"""Characters: what to do next is at its end."""


def attach(notebook: Path, snapshot: Path | None, settings: Settings) -> Shown:
    """Put a snapshot, by default the one beside the notebook, into a notebook that is not open."""
    source = snapshot or beside(notebook)
    keyring = Keyring(settings.trust_dir)
    data = read(source, max_bytes=MAX_SNAPSHOT_BYTES)
    receive(data, keyring, where=str(source))  # what is broken is not attached

    def change(opened: Any) -> bool:
        nonlocal data
        there = [each for each in in_notebook.attached(opened) if is_snapshot(each, keyring)]
        data = united([*there, data], keyring)
        in_notebook.attach(opened, data)
        return True

    _change(notebook, change)
    return Shown(
        [f"{notebook}: carries {source.name} now ({size(len(data))})"],
        {"notebook": str(notebook), "snapshot": str(source), "bytes": len(data)},
    )


def detach(notebook: Path, settings: Settings) -> Shown:
    """Take attached snapshots out of a notebook that is not open."""
    taken = 0

    def change(opened: Any) -> bool:
        nonlocal taken
        taken = in_notebook.detach(opened)
        return taken > 0

    _change(notebook, change)
    return Shown(
        [f"{notebook}: {counted(taken, 'snapshot')} taken out"],
        {"notebook": str(notebook), "snapshots": taken},
        ok=taken > 0,
    )


def extract(notebook: Path, output: Path | None, settings: Settings) -> Shown:
    """Write the snapshot that a notebook carries into a file, by default the one beside the notebook."""
    snapshots, _ = in_notebook.carried(read(notebook, max_bytes=MAX_NOTEBOOK_BYTES))
    if not snapshots:
        raise SnapshotError(
            "this notebook carries no snapshot", where=str(notebook), next_step="nbcache attach puts one in"
        )
    keyring, target, data = Keyring(settings.trust_dir), output or beside(notebook), b""
    sound = [snapshot for snapshot in snapshots if is_snapshot(snapshot, keyring)]
    if not sound:
        receive(snapshots[0], keyring, where=str(notebook))  # raises the error that says what is wrong

    def change(before: bytes | None) -> bytes:
        nonlocal data
        there = [] if before is None else [before]
        for snapshot in there:
            receive(snapshot, keyring, where=str(target))
        data = united([*there, *sound], keyring)
        return data

    update(target, change, max_bytes=MAX_SNAPSHOT_BYTES)
    return Shown([f"{target}: {size(len(data))}"], {"path": str(target), "bytes": len(data)})


def warm(notebook: Path, portable: str | None, settings: Settings) -> Shown:
    """Run a notebook without a person, and write the snapshot beside it; `portable` is the CPUs it is for."""
    if portable is not None:
        chosen(portable)  # else the kernel would compile for this CPU
        settings = settings.with_value("portable", portable, origin="--portable")
    target = beside(notebook)
    done = headless.run(notebook, settings.to_env(), snapshot=str(target.resolve()), say=say)
    lines = [f"{done.snapshot}".strip()] if done.error is None else []
    return _shown(done, lines, {"snapshot": str(target)}, ok=True)


def run(notebook: Path, require_hit: bool, settings: Settings) -> Shown:
    """Run a notebook without a person, and show what hit; with `require_hit`, any miss is a failure."""
    done = headless.run(notebook, settings.to_env(), say=say)
    missed = [graph for graph in done.graphs if graph["outcome"] != "hit"]
    lines = [f"{notebook}: {len(done.graphs) - len(missed)} of {counted(len(done.graphs), 'graph')} hit"]
    for graph in missed:
        cell = graph["cell"] and graph["cell"]["execution_count"]
        where = f"In[{cell}] " if cell is not None else ""
        lines.append(
            f"  {where}{graph['function']} {graph['compile_id']} {graph['direction']}: "
            f"{graph['outcome']}, {one_line(graph['reason'] or NOTHING)}"
        )
    lines += [f"  {line}" for line in missed_lines(done.missed_unchanged)]
    data = {"hits": len(done.graphs) - len(missed), "missed_unchanged": done.missed_unchanged}
    return _shown(done, lines, data, ok=not (require_hit and missed))


def verify_traces(notebook: Path, settings: Settings) -> Shown:
    """Run a notebook without a person, and audit its traces; without any that agrees, it is a failure."""
    audited = settings.with_value("trace", "audit", origin="--traces")
    done = headless.run(notebook, audited.to_env(), say=say)
    graphs = [graph for graph in done.graphs if graph["direction"] != "backward"]
    agree, differ = ([graph for graph in graphs if graph["trace"] == each] for each in ("agrees", "differs"))
    count = len(agree) + len(differ)
    lines = [f"{notebook}: {len(agree)} of {counted(count, 'trace')} agree with what torch traces now"]
    lines += [f"  {graph['function']} {graph['compile_id']}: {graph['reason']}" for graph in differ]
    if not count and done.error is None:
        lines.append(
            "  none was stored that fits. Next: run this again, as functions that can have one have it now"
        )
    data = {"agree": len(agree), "differ": len(differ)}
    return _shown(done, lines, data, ok=bool(agree) and not differ)


def _shown(done: headless.Run, lines: list[str], data: dict[str, Any], *, ok: bool) -> Shown:
    """Return what a run is shown as: with what its kernel warned of, and the cell that failed."""
    lines += [f"  ! {one_line(notice, _LONGEST_NOTICE)}" for notice in done.notices]
    lines += [] if done.error is None else [done.error]
    data = {**data, "error": done.error, "graphs": done.graphs, "notices": done.notices}
    return Shown(lines, data, ok=ok and done.error is None)


def _change(notebook: Path, change: Callable[[Any], bool]) -> None:
    """Write a notebook that is not open as `change` leaves it; as it was where that returns False."""
    if (server := opened_by(notebook)) is not None:
        raise SnapshotError(
            f"this notebook is open, and what is on screen would be saved over it ({server})",
            where=str(notebook),
            next_step="close it and shut its kernel down, or run `%nbcache snapshot notebook` in it",
        )

    def changed(before: bytes | None) -> bytes:
        opened = in_notebook.decode_notebook(before or b"", str(notebook))
        changed = change(opened)
        return in_notebook.encode_notebook(opened) if changed or before is None else before

    if not notebook.exists():
        raise SnapshotError("there is no such notebook", where=str(notebook), next_step="check the path")
    update(notebook, changed, max_bytes=MAX_NOTEBOOK_BYTES)
