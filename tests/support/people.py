"""People without torch: folders, keys and stores of their own, to take and restore snapshots with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nbcache.core.model import Environment, Outcome
from nbcache.core.settings import Policy, Settings
from nbcache.kernel.session import Session
from nbcache.kernel.snapshots import Sharing
from nbcache.sharing.snapshots.build import Origin
from nbcache.sharing.snapshots.file import SnapshotFile, decode_file, encode_file
from nbcache.sharing.snapshots.sources import beside
from nbcache.sharing.trust import Keyring
from nbcache.storage.backends.base import Store
from nbcache.storage.backends.directory import DirectoryStore
from support.live_kernels import HERE
from support.testing import FakeBridge

ORIGIN = Origin("model.ipynb", 1700000000.0, "nbcache 0.1.0", "ada", "engine")


class Person:
    """Somebody's folder, keys and store; each `session` is a new kernel of theirs."""

    def __init__(self, folder: Path, environment: Environment = HERE) -> None:
        folder.mkdir()
        self.notebook = folder / "model.ipynb"
        self.snapshot = beside(self.notebook)
        self.keys = folder / "keys"
        self.store: Store = DirectoryStore(folder / "store", name="memory")
        self.environment = environment

    def session(self, policy: Policy = Policy.STRICT) -> tuple[Session, FakeBridge, Sharing]:
        settings = replace(Settings(), trust=policy, trust_dir=self.keys)
        bridge = FakeBridge(self.environment)
        session = Session(settings, bridge, self.store, locate_notebook=lambda: str(self.notebook))
        sharing = Sharing(session)
        session.start()
        sharing.look()
        assert sharing.wait_for_look(10)
        session.cache.keys_of("inductor", 10)
        return session, bridge, sharing

    def make(self, *keys: str) -> bytes:
        """Compile `keys`, write the snapshot, and return its bytes."""
        session, bridge, sharing = self.session()
        for key in keys:
            bridge.compile(key)
        data = sharing.write(self.snapshot, ORIGIN).data
        session.close()
        return data


def outcomes(session: Session) -> list[Outcome]:
    return [graph.outcome for graph in session.graphs]


def key_of(person: Person) -> str:
    """Return the fingerprint of somebody's key."""
    return Keyring(person.keys).fingerprint()


def trusts(one: Person, *others: Person) -> None:
    for other in others:
        Keyring(one.keys).add(key_of(other), other.notebook.parent.name)


def unsigned(data: bytes) -> bytes:
    """Return a snapshot file of one version without its signature."""
    file = decode_file(data)
    (version,) = file.versions
    return encode_file(SnapshotFile([replace(version, signature=None)], file.packed))


HOSTILE = "evil\n\x1b[200~rm -rf\x9b1m\u202e\r\x07" + "x" * 150
"""The name of a file that would begin a line, steer a terminal and paste into a shell."""


def hostile_snapshot(folder: Path) -> Path:
    """Return a snapshot in which all that its signer may choose is hostile."""
    eve = Person(folder / "eve")
    session, bridge, sharing = eve.session()
    bridge.compile("one", function=HOSTILE)
    names = {"notebook": HOSTILE, "made_by": HOSTILE, "user": HOSTILE, "host": HOSTILE}
    sharing.write(eve.snapshot, replace(ORIGIN, **names))
    session.close()
    return eve.snapshot
