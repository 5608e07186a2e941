"""Which checks there are, in a kernel and in a terminal."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import partial

from nbcache.core.errors import StoreError
from nbcache.core.model import Environment
from nbcache.core.settings import Settings
from nbcache.core.trust import Keyring
from nbcache.kernel.session import Session
from nbcache.kernel.snapshots import Sharing
from nbcache.parts import PARTS
from nbcache.stores.directory import DirectoryStore
from nbcache.torch_bridge import TorchBridge, environment
from nbcache.torch_bridge.cache_folder import CacheFolder
from nbcache.torch_bridge.cache_settings import FOLDER
from nbcache.torch_bridge.hooks import misfits
from nbcache.ui.display.rows import Check
from nbcache.ui.doctor import machine, notebook, places
from nbcache.ui.doctor.checks import Checks, Look, checked
from nbcache.ui.locate import Location

__all__ = ["in_kernel", "in_terminal"]


def in_kernel(
    session: Session,
    bridge: TorchBridge,
    sharing: Sharing,
    locate: Callable[[], Location],
    store_error: StoreError | None,
) -> list[Check]:
    """Check what this kernel needs; `store_error` is why its store is in memory, None where it is not."""
    settings, here = session.settings, session.environment
    store = partial(places.store, settings, session.artifacts.store, store_error)
    folder, chosen_by = bridge.folder.where()
    serves = here is None or bridge.folder.is_served()
    return checked(
        ("nbcache", notebook.version),
        ("kernel", notebook.kernel),
        ("notebook", lambda: notebook.file(locate())),
        ("torch", partial(machine.torch, here, plain_because=bridge.plain_because)),
        ("hooks", partial(machine.hooks, PARTS, bridge.hooks.lost)),
        ("machine", partial(machine.processors, here)),
        ("torch's caches", partial(machine.caches, bridge.switched_caches())),
        ("torch's folder", partial(machine.torch_folder, folder, chosen_by, serves)),
        *_everywhere(settings, store, folder),
        ("snapshots", partial(notebook.snapshots, sharing, here, settings.trust)),
        ("shared store", partial(notebook.connection, settings, session.shared_client)),
        ("prewarming", partial(notebook.prewarming, settings, session.prewarm)),
        ("traces", partial(notebook.traces, settings, bridge.traces, bridge.hooks.lost)),
        ("notices", partial(notebook.notices, session.notices)),
    )


def in_terminal(settings: Settings) -> list[Check]:
    """Check what kernels that are started from here need; imports torch, if it is there."""
    here: Environment | None = None
    failure: Exception | None = None
    try:
        here = environment.current()
    except Exception as error:  # absent, broken or too old
        failure = error
    folder, chosen_by = CacheFolder().where()
    return checked(
        ("nbcache", notebook.version),
        ("torch", partial(machine.torch, here, failure)),
        *([] if failure else [("hooks", _hooks)]),
        ("machine", partial(machine.processors, here)),
        ("torch's caches", machine.caches),
        *([("torch's folder", partial(machine.torch_folder, folder, chosen_by, True))] if folder else []),
        *_everywhere(settings, lambda: places.store(settings, DirectoryStore(settings.dir)), folder),
        ("shared store", partial(notebook.reachable, settings)),
    )


def _hooks() -> Checks:
    """Check which parts fit; importing torch's compiler makes its folder, which is another one meanwhile."""
    before = os.environ.get(FOLDER)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[FOLDER] = folder
        try:
            lost = misfits(PARTS)
        finally:
            if before is None:
                del os.environ[FOLDER]
            else:
                os.environ[FOLDER] = before
    return machine.hooks(PARTS, lost)


def _everywhere(settings: Settings, store: Look, torch_folder: str) -> list[tuple[str, Look]]:
    folders = {"torch's folder": torch_folder, "the local store": str(settings.dir)}
    return [
        ("temp folder", machine.temp_folder),
        ("C++ compiler", machine.compiler),
        ("portable", partial(machine.portable, settings)),
        ("local store", store),
        ("disk", partial(places.disks, {name: folder for name, folder in folders.items() if folder})),
        ("trust", partial(places.policy, settings)),
        ("keys", lambda: places.keys(Keyring(settings.trust_dir))),
    ]
