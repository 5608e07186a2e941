"""`nbcache kernel`: kernels that start with torch imported."""

from __future__ import annotations

import time

from nbcache.core.text import ago, counted, size
from nbcache.launcher import kernel_spec
from nbcache.ui.terminal.shown import Shown

__all__ = ["kernel"]


def kernel(action: str, *, user: bool = False) -> Shown:
    """Install, show, start, stop or uninstall."""
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
        said = kernel_spec.start()
        return Shown([f"ready: nursery {said['process']}, for kernels with this environment"], said)
    if action == "stop":
        return _stop()
    return _status()


def _stop() -> Shown:
    stopped, unknown = kernel_spec.stop()
    lines = [f"ended: {counted(len(stopped), 'nursery', 'nurseries')}"]
    lines += [f"not ended: {lock} names no nursery of yours" for lock in unknown]
    return Shown(lines, {"stopped": stopped})


def _status() -> Shown:
    folder, found = kernel_spec.installed(), kernel_spec.nurseries()
    lines = [f"kernel: {folder}" if folder else "kernel: not installed (nbcache kernel install)"]
    if folder and not kernel_spec.is_current():
        lines[0] += ", installed by an earlier version of nbcache (run nbcache kernel install)"
    for each in found:
        lines.append(
            f"nursery {each['process']}: {counted(each['kernels'], 'kernel')} forked, started "
            f"{ago(time.time() - each['since'])}, {size(each['bytes'])} ({each['python']})"
        )
    if not found:
        lines.append("no nursery: the next kernel starts one, and the one after it is forked from it")
    if (last := kernel_spec.ordinary()) is not None:
        lines.append(f"last kernel that was not forked: {ago(time.time() - last['time'])}, {last['why']}")
    return Shown(lines, {"folder": folder and str(folder), "nurseries": found, "ordinary": last})
