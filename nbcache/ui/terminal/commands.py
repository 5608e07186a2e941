"""The function of each command by its name, and the commands on notebooks and kernels."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nbcache.core.errors import SnapshotError
from nbcache.core.files import read, update
from nbcache.core.settings import Settings
from nbcache.core.text import NOTHING, ago, counted, one_line, size
from nbcache.launcher import kernel_spec
from nbcache.launcher.protocol import ordinary
from nbcache.sharing.snapshots import in_notebook
from nbcache.sharing.snapshots.build import united
from nbcache.sharing.snapshots.file import MAX_SNAPSHOT_BYTES
from nbcache.sharing.snapshots.sources import MAX_NOTEBOOK_BYTES, beside
from nbcache.sharing.snapshots.verify import receive
from nbcache.sharing.trust import Keyring
from nbcache.torch_bridge.portable import chosen
from nbcache.ui.display.reports import render_checks
from nbcache.ui.display.words import CheckState, missed_lines
from nbcache.ui.doctor import in_terminal
from nbcache.ui.locate import opened_by
from nbcache.ui.terminal import headless, snapshots
from nbcache.ui.terminal.shown import Shown, is_snapshot, say

_LONGEST_NOTICE = 600
"""Characters: what to do next is at its end."""


def attach(notebook: Path, snapshot: Path | None, settings: Settings) -> Shown:
    """Put a snapshot, by default the one beside the notebook, into a notebook that is not open."""
    source = snapshot or beside(notebook)
    keyring = Keyring(settings.trust_dir)
    data = read(source, max_bytes=MAX_SNAPSHOT_BYTES)
    receive(data, keyring, where=str(source))  # what is broken is not attached

    def change(opened: Any) -> int:
        attached = [part for part in in_notebook.attached(opened) if is_snapshot(part, keyring)]
        whole = united([*attached, data], keyring)
        in_notebook.attach(opened, whole)
        return len(whole)

    length = _change(notebook, change)
    line = f"{notebook}: carries {source.name} now ({size(length)})"
    return Shown([line], {"notebook": str(notebook), "snapshot": str(source), "bytes": length})


def detach(notebook: Path, settings: Settings) -> Shown:
    """Take attached snapshots out of a notebook that is not open."""
    count = _change(notebook, in_notebook.detach)
    line = f"{notebook}: {counted(count, 'snapshot')} taken out"
    return Shown([line], {"notebook": str(notebook), "snapshots": count}, ok=count > 0)


def extract(notebook: Path, output: Path | None, settings: Settings) -> Shown:
    """Write the snapshot that a notebook carries into a file, by default the one beside the notebook."""
    snapshots, _ = in_notebook.carried(read(notebook, max_bytes=MAX_NOTEBOOK_BYTES))
    if not snapshots:
        raise SnapshotError(
            "this notebook carries no snapshot", where=str(notebook), next_step="nbcache attach puts one in"
        )
    keyring, target = Keyring(settings.trust_dir), output or beside(notebook)
    sound = [snapshot for snapshot in snapshots if is_snapshot(snapshot, keyring)]
    if not sound:
        receive(snapshots[0], keyring, where=str(notebook))  # raises the error that says what is wrong

    def change(before: bytes | None) -> bytes:
        if before is not None:
            receive(before, keyring, where=str(target))
        return united([*([] if before is None else [before]), *sound], keyring)

    update(target, change, max_bytes=MAX_SNAPSHOT_BYTES)
    length = target.stat().st_size
    return Shown([f"{target}: {size(length)}"], {"path": str(target), "bytes": length})


def warm(notebook: Path, portable: str | None, settings: Settings) -> Shown:
    """Run a notebook without a person, and write the snapshot beside it; `portable` is the CPUs it is for."""
    if portable is not None:
        chosen(portable)  # else the kernel would compile for this CPU
        settings = settings.with_value("portable", portable, origin="--portable")
    target = beside(notebook)
    done = headless.run(notebook, settings.to_env(), snapshot=str(target.resolve()), say=say)
    lines = [f"{done.snapshot}".strip()] if done.error is None else []
    return _answer(done, lines, {"snapshot": str(target)}, ok=True)


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
    return _answer(done, lines, data, ok=not (require_hit and missed))


def verify_traces(notebook: Path, settings: Settings) -> Shown:
    """Run a notebook without a person, and audit its traces; without any that agrees, it is a failure."""
    audited = settings.with_value("trace", "audit", origin="--traces")
    done = headless.run(notebook, audited.to_env(), say=say)
    graphs = [graph for graph in done.graphs if graph["direction"] != "backward"]
    agree = sum(graph["trace"] == "agrees" for graph in graphs)
    differ = [graph for graph in graphs if graph["trace"] == "differs"]
    count = counted(agree + len(differ), "trace")
    lines = [f"{notebook}: {agree} of {count} agree with what torch traces now"]
    lines += [f"  {graph['function']} {graph['compile_id']}: {graph['reason']}" for graph in differ]
    if not agree and not differ and done.error is None:
        next_step = "run this again, as functions that can have one have it now"
        lines.append(f"  none was stored that fits. Next: {next_step}")
    data = {"agree": agree, "differ": len(differ)}
    return _answer(done, lines, data, ok=agree > 0 and not differ)


def _answer(done: headless.Run, lines: list[str], data: dict[str, Any], *, ok: bool) -> Shown:
    """Return what a run is shown as: with what its kernel warned of, and the cell that failed."""
    lines += [f"  ! {one_line(notice, _LONGEST_NOTICE)}" for notice in done.notices]
    lines += [done.error] if done.error is not None else []
    data = {**data, "error": done.error, "graphs": done.graphs, "notices": done.notices}
    return Shown(lines, data, ok=ok and done.error is None)


def _change(notebook: Path, change: Callable[[Any], int]) -> int:
    """Write a notebook that is not open as `change` leaves it, unless that returns 0; return its number."""
    if (server := opened_by(notebook)) is not None:
        raise SnapshotError(
            f"this notebook is open, and what is on screen would be saved over it ({server})",
            where=str(notebook),
            next_step="close it and shut its kernel down, or run `%nbcache snapshot notebook` in it",
        )
    if not notebook.exists():
        raise SnapshotError("there is no such notebook", where=str(notebook), next_step="check the path")
    numbers = []

    def rewrite(before: bytes | None) -> bytes:
        opened = in_notebook.decode_notebook(before or b"", str(notebook))
        numbers.append(change(opened))
        return in_notebook.encode_notebook(opened) if numbers[-1] or before is None else before

    update(notebook, rewrite, max_bytes=MAX_NOTEBOOK_BYTES)
    return numbers[-1]


def verify(source: str, traces: bool, settings: Settings) -> Shown:
    return verify_traces(Path(source), settings) if traces else snapshots.verify(source, settings)


def doctor(settings: Settings) -> Shown:
    checks = in_terminal(settings)
    rendered = render_checks(checks)
    sound = all(check.state is not CheckState.PROBLEM for check in checks)
    return Shown(rendered.text.splitlines(), rendered.data, ok=sound)


def kernel(action: str, user: bool, settings: Settings) -> Shown:
    """Install, show, start, stop or uninstall the Jupyter kernel that starts with torch imported."""
    match action:
        case "install":
            folder = kernel_spec.install(user=user)
            how = "choose the kernel `Python 3 (nbcache)` in Jupyter: its second start finds torch imported"
            return Shown([f"installed: {folder}", how], {"folder": str(folder)})
        case "uninstall":
            stopped, folder = _stop(), kernel_spec.uninstall()
            return Shown([f"removed: {folder}", *stopped.lines], {"folder": str(folder), **stopped.data})
        case "start":
            nursery = kernel_spec.start()
            return Shown([f"ready: nursery {nursery['process']}, for kernels with this environment"], nursery)
        case "stop":
            return _stop()
        case _:
            return _status()


def _stop() -> Shown:
    stopped, unknown = kernel_spec.stop()
    lines = [f"ended: {counted(len(stopped), 'nursery', 'nurseries')}"]
    lines += [f"not ended: {lock} names no nursery of yours" for lock in unknown]
    return Shown(lines, {"stopped": stopped})


def _status() -> Shown:
    folder, nurseries = kernel_spec.installed(), kernel_spec.nurseries()
    lines = [f"kernel: {folder}" if folder else "kernel: not installed (nbcache kernel install)"]
    if folder and not kernel_spec.is_current():
        lines[0] += ", installed by an earlier version of nbcache (run nbcache kernel install)"
    for nursery in nurseries:
        lines.append(
            f"nursery {nursery['process']}: {counted(nursery['kernels'], 'kernel')} forked, started "
            f"{ago(time.time() - nursery['since'])}, {size(nursery['bytes'])} ({nursery['python']})"
        )
    if not nurseries:
        lines.append("no nursery: the next kernel starts one, and the one after it is forked from it")
    if (last := ordinary()) is not None:
        lines.append(f"last kernel that was not forked: {ago(time.time() - last['time'])}, {last['why']}")
    return Shown(lines, {"folder": folder and str(folder), "nurseries": nurseries, "ordinary": last})


_COMMANDS: tuple[Callable[..., Shown], ...] = (
    *(snapshots.inspect, snapshots.snapshot, snapshots.restore, snapshots.ls, snapshots.rm, snapshots.gc),
    *(snapshots.merge, snapshots.export_mega, snapshots.import_mega, snapshots.trust),
    *(attach, detach, doctor, extract, kernel, run, verify, warm),
)
RUNS = {command.__name__.replace("_", "-"): command for command in _COMMANDS}
"""Each takes the arguments of its form in the table of verbs by their names, and the settings."""
