"""Folders, disks, the local store, and keys."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from nbcache.core.errors import StoreError
from nbcache.core.settings import Settings
from nbcache.core.text import DOT, counted, size
from nbcache.core.trust import Keyring, Policy, short
from nbcache.stores.base import Store
from nbcache.stores.directory import DirectoryStore
from nbcache.ui.display.rows import Check, StoreFigures, store_parts
from nbcache.ui.doctor.checks import REPORT, Checks, note, ok, problem

__all__ = ["disks", "keys", "policy", "store", "store_figures", "usable"]

_LEAST_FREE = 10**9
"""Bytes that each disk needs: each of the headers that torch precompiles takes some 150 MB (2.13)."""


def usable(name: str, folder: str, found: str, remedy: str) -> Check:
    """Check a folder in which torch compiles."""
    if any(character.isspace() for character in folder):
        return problem(name, f"{found}: torch cannot compile where a name has a space", remedy)
    if (error := _unwritable(Path(folder))) is not None:
        return problem(name, f"{found}: {error.strerror or error}", remedy)
    return ok(name, found)


def _unwritable(folder: Path) -> OSError | None:
    """Return why nothing can be written to a folder, or to where it would be made; None where it can."""
    try:
        with tempfile.TemporaryFile(dir=_existing(folder), buffering=0) as file:
            file.write(b"nbcache")
    except OSError as error:
        return error
    return None


def _existing(folder: Path) -> Path:
    """Return the folder, or where it is not there, the nearest above it that is."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def disks(folders: dict[str, str]) -> Checks:
    """Check the room on the disk of each folder, by name, and of the temp folder; a disk counts once."""
    disks: dict[int, tuple[Path, list[str]]] = {}
    for name, folder in {"the temp folder": tempfile.gettempdir(), **folders}.items():
        there = _existing(Path(folder).absolute())
        disks.setdefault(there.stat().st_dev, (there, []))[1].append(name)
    for there, names in disks.values():
        free = shutil.disk_usage(there).free
        found = f"{size(free)} free for {', '.join(names)}"
        if free < _LEAST_FREE:
            yield problem("disk", found, f"free {size(_LEAST_FREE)}, or choose folders on another disk")
        else:
            yield ok("disk", found)


def store_figures(store: Store, max_bytes: int) -> StoreFigures:
    """Count what a store holds; StoreError where it fails. `max_bytes` is the local store's bound."""
    entries = sum(1 for _ in store.keys("artifact/"))
    if isinstance(store, DirectoryStore):
        return StoreFigures(store.name, entries, store.size("artifact/"), max_bytes)
    return StoreFigures(store.name, entries, 0)


def store(settings: Settings, store: Store, error: StoreError | None = None) -> Checks:
    """Check the store; `error` is why it is not the local one."""
    name = "local store"
    folder = store.path if isinstance(store, DirectoryStore) else None
    figures = store_parts(store_figures(store, settings.max_bytes))
    found = DOT.join([str(folder or store.name), *figures[1:]])
    cause = None if folder is None else _unwritable(folder)
    if error is not None:
        found = f"{error}; the {store.name} serves instead, and the next one starts cold"
        yield problem(name, found, error.next_step or REPORT)
    elif store.read_only:
        found += ": it cannot be written to, so nothing new is kept"
        yield note(name, found, "set NBCACHE_DIR to a folder that you can write to, and restart the kernel")
    elif cause is not None:
        remedy = "free disk space, or set NBCACHE_DIR to another folder, and restart the kernel"
        yield problem(name, f"{found}: {cause.strerror or cause}", remedy)
    elif not settings.save:
        found += f": save=off ({settings.origin('save')}), so nothing new is kept"
        yield note(name, found, "%nbcache config save=on, or NBCACHE_SAVE=on")
    else:
        yield ok(name, found)


def policy(settings: Settings) -> Checks:
    found = f"{settings.trust.value} ({settings.origin('trust')})"
    means = {
        Policy.ASK: "you are asked to trust whoever signed a snapshot that comes along",
        Policy.OFF: "anyone's snapshots run as you, with all your rights",
    }
    if settings.trust in means:
        remedy = "%nbcache config trust=strict, or NBCACHE_TRUST=strict"
        yield note("trust", f"{found}: {means[settings.trust]}", remedy)
    else:
        yield ok("trust", found)


def keys(keyring: Keyring) -> Checks:
    own, trusted = keyring.own(), keyring.trusted()
    none = "you have none yet: the first snapshot makes one, or %nbcache trust"
    yours = none if own is None else f"yours is {short(own)}"
    yield ok("keys", f"{yours}{DOT}{counted(len(trusted), 'signer')} trusted")
