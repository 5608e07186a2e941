"""The function of each command, by its name in the table of verbs, and the commands that are short."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from nbcache.core.settings import Settings
from nbcache.core.text import ago, counted, size
from nbcache.launcher import kernel_spec
from nbcache.launcher.protocol import ordinary
from nbcache.ui.display.reports import render_checks
from nbcache.ui.display.words import CheckState
from nbcache.ui.doctor import in_terminal
from nbcache.ui.terminal import notebooks, signers, snapshots
from nbcache.ui.terminal.shown import Shown


def verify(source: str, traces: bool, settings: Settings) -> Shown:
    """Check the snapshots at `source`, or with `traces` those of the notebook."""
    if traces:
        return notebooks.verify_traces(Path(source), settings)
    return snapshots.verify(source, settings)


def doctor(settings: Settings) -> Shown:
    """Check what nbcache needs of this machine; a problem is a failure."""
    checks = in_terminal(settings)
    rendered = render_checks(checks)
    sound = all(check.state is not CheckState.PROBLEM for check in checks)
    return Shown(rendered.text.splitlines(), rendered.data, ok=sound)


def kernel(action: str, user: bool, settings: Settings) -> Shown:
    """Install, show, start, stop or uninstall the Jupyter kernel that starts with torch imported."""
    if action == "install":
        folder = kernel_spec.install(user=user)
        lines = [
            f"installed: {folder}",
            "choose the kernel `Python 3 (nbcache)` in Jupyter: its second start finds torch imported",
        ]
        return Shown(lines, {"folder": str(folder)})
    if action == "uninstall":
        stopped, folder = _stop(), kernel_spec.uninstall()
        return Shown([f"removed: {folder}", *stopped.lines], {"folder": str(folder), **stopped.data})
    if action == "start":
        nursery = kernel_spec.start()
        line = f"ready: nursery {nursery['process']}, for kernels with this environment"
        return Shown([line], nursery)
    if action == "stop":
        return _stop()
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


RUNS: Mapping[str, Callable[..., Shown]] = {
    "inspect": snapshots.inspect,
    "verify": verify,
    "snapshot": snapshots.snapshot,
    "restore": snapshots.restore,
    "ls": snapshots.ls,
    "rm": snapshots.rm,
    "gc": snapshots.gc,
    "merge": snapshots.merge,
    "export-mega": snapshots.export_mega,
    "import-mega": snapshots.import_mega,
    "attach": notebooks.attach,
    "detach": notebooks.detach,
    "extract": notebooks.extract,
    "warm": notebooks.warm,
    "run": notebooks.run,
    "doctor": doctor,
    "trust": signers.trust,
    "kernel": kernel,
}
"""Each takes the arguments of its form in the table of verbs by their names, and the settings."""
