"""The notebook, its snapshots, the shared store, prewarming, and notices."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from contextlib import closing

from nbcache.artifacts.compatibility import fitting
from nbcache.core.errors import ConfigError, StoreError
from nbcache.core.model import Environment
from nbcache.core.settings import Settings
from nbcache.core.text import DOT
from nbcache.core.trust import Policy
from nbcache.core.version import __version__
from nbcache.kernel.prewarming import Prewarming
from nbcache.kernel.shared_client import SharedClient
from nbcache.kernel.snapshots import Sharing
from nbcache.launcher.forked import parent
from nbcache.launcher.protocol import ordinary
from nbcache.snapshots.verify import Received
from nbcache.stores.open import open_shared
from nbcache.torch_bridge import environment
from nbcache.torch_bridge.context import Traces
from nbcache.ui.display.rows import Check, prewarming_parts, shared_parts
from nbcache.ui.display.snapshots import arrival
from nbcache.ui.doctor.checks import Checks, note, ok, problem
from nbcache.ui.locate import Location

__all__ = [
    "connection",
    "file",
    "kernel",
    "notices",
    "prewarming",
    "reachable",
    "snapshots",
    "traces",
    "version",
]

_LOOK_SECONDS = 0.5
"""How long to wait until the notebook's snapshots have been looked for."""


def version() -> Checks:
    yield ok("nbcache", f"{__version__}, on Python {platform.python_version()}")


def kernel() -> Checks:
    """Tell whether this kernel was forked from a nursery."""
    if nursery := parent():
        yield ok("kernel", f"forked from the nursery {nursery}, with torch imported")
    else:
        last = ordinary()
        if last is not None and last["process"] == os.getpid():
            next_step = "restart the kernel: a nursery is started for the next one"
            yield note("kernel", f"not forked from a nursery: {last['why']}", next_step)
        else:
            yield ok("kernel", "an ordinary one (`nbcache kernel install` adds one that has torch imported)")


def file(location: Location) -> Checks:
    found = f"{location.path}, found by {location.found_by}"
    if not location.path:
        found = f"{location.found_by}, and none of its snapshots is looked for"
        yield note("notebook", found, "%nbcache config notebook=PATH")
    elif not os.path.isfile(location.path):
        yield note("notebook", f"{found}, and there is no such file", "save it, or correct the path")
    else:
        yield ok("notebook", found)


def snapshots(sharing: Sharing, here: Environment | None, policy: Policy) -> Checks:
    if not sharing.looked(_LOOK_SECONDS):
        yield note("snapshot", "those of this notebook are still being looked for", "ask again in a moment")
    problems = sharing.problems()
    for error in problems:
        yield problem("snapshot", str(error), error.next_step or "take it anew, or remove it")
    known = sharing.known()
    for received in known:
        yield _snapshot(received, here, policy, sharing)
    if not problems and not known:
        yield ok("snapshots", "none came with this notebook")


def _snapshot(received: Received, here: Environment | None, policy: Policy, sharing: Sharing) -> Check:
    foreseen = here or environment.foreseen()
    said, hindrances = arrival(received, foreseen, policy, sharing.judge, sharing.cells)
    if here is not None and fitting(received.snapshot.manifests, here) is None:
        hindrances.append(("nothing of it can be used here", "%nbcache snapshot, once the cells have run"))
    if hindrances:
        why, next_steps = zip(*hindrances, strict=True)
        return note("snapshot", DOT.join([said, *why]), "; ".join(next_steps))
    return ok("snapshot", DOT.join([said, "used" if here else "used as soon as torch is imported"]))


def connection(settings: Settings, shared_client: SharedClient | None) -> Checks:
    """Check the shared store of a kernel."""
    if shared_client is None:
        if settings.shared_url:
            yield note("shared store", "not connected, as a notice explains", "%nbcache connect")
        else:
            yield ok("shared store", "not connected to any: %nbcache connect URL")
        return
    figures = shared_client.level.figures()
    said = DOT.join(shared_parts(figures))
    if figures.off:
        failure = shared_client.level.failure
        yield problem("shared store", said, (failure and failure.next_step) or "check that it can be reached")
    else:
        yield ok("shared store", said)


def reachable(settings: Settings) -> Checks:
    """Check the shared store that kernels started from here connect to."""
    if not settings.shared_url:
        return
    try:
        with closing(open_shared(settings)) as store:
            store.present(["probe"])
            yield ok("shared store", f"{store.name} answers ({settings.origin('shared_url')})")
    except (ConfigError, StoreError) as error:
        yield problem("shared store", str(error), error.next_step or "check that it can be reached")


def prewarming(settings: Settings, prewarming: Prewarming) -> Checks:
    if prewarming.state == "failed":
        found = "failed, as a notice explains: the first cells that compile take longer"
        yield problem("prewarming", found, "restart the kernel; if it stays so, report the notice")
    elif not settings.prewarm:
        yield ok("prewarming", f"off ({settings.origin('prewarm')})")
    else:
        begun = DOT.join(prewarming_parts(prewarming))
        yield ok("prewarming", begun or "not begun: it is done while no cell runs, in a notebook's kernel")


def traces(settings: Settings, kept: Traces | None, lost: Mapping[str, str]) -> Checks:
    """Tell whether this kernel keeps traces; `kept` is None where torch is not imported.

    `lost` says why parts are off.
    """
    why = lost.get("trace_frames", "") or ("" if kept is None else kept.off_because())
    if settings.trace == "off":
        yield ok("traces", f"off ({settings.origin('trace')})")
    else:
        yield ok("traces", f"off: {why}; functions are traced in each kernel" if why else settings.trace)


def notices(notices: list[str]) -> Checks:
    for notice in notices:
        yield note("notice", notice, "see to what it says; a fresh kernel shows whether it stays away")
    if not notices:
        yield ok("notices", "none")
