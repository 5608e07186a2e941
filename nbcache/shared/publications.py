"""What kernels have of a notebook, published on a shared store: signed manifests, and who is told of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from nbcache.artifacts.encoding import decode_manifest, encode_manifest, pack
from nbcache.artifacts.manifests import union
from nbcache.core import key as keys
from nbcache.core.errors import FormatError
from nbcache.core.key import is_sha256, sha256
from nbcache.core.model import ArtifactRef, Manifest
from nbcache.core.signature import Purpose
from nbcache.core.threads import renew_in_children
from nbcache.shared import keys as shared_keys
from nbcache.shared.connection import Connection
from nbcache.shared.entries import Entries
from nbcache.shared.layout import encode_shared
from nbcache.shared.signing import Signer, VerifiedEntry
from nbcache.stores.base import is_key
from nbcache.stores.leases import Listener

__all__ = ["Publication", "Publications"]

_PUBLICATION = "publication"
"""Type of the artifact that a publication is; torch asks for none of that type."""
_MOST_PUBLICATIONS, _MOST_PUBLISHED = 128, 16 << 20
"""Publications of one notebook that are read, and their bytes: a team may have thousands of a common name."""
_LISTED_BYTES = 65 * _MOST_PUBLICATIONS
"""Of the list of a notebook's publishers, which has one a line, what is looked at."""
_REF_BYTES = 400
"""About what a manifest takes in memory for each artifact."""
_DAY_SECONDS = 86400.0


@dataclass(frozen=True, slots=True)
class Publication:
    """What one publisher has of a notebook."""

    found: VerifiedEntry
    manifest: Manifest

    @property
    def user(self) -> str:
        return self.found.statement.user

    @property
    def host(self) -> str:
        return self.found.statement.host

    @property
    def published(self) -> float:
        """Unix seconds, by the publisher's clock."""
        return self.found.statement.ref.used


class Publications:
    """What is published of notebooks on one shared store, as one kernel reads and writes it."""

    def __init__(self, connection: Connection, entries: Entries, signer: Signer) -> None:
        self._connection = connection
        self._store = connection.store
        self._entries = entries
        self._signer = signer
        self._announced = 0
        """How many artifacts this kernel had published when it last told of that."""
        self._lock = threading.Lock()
        self._listener: Listener | None = None
        self._listening_to = ""
        self.own = ""
        """Where this kernel publishes what it has of its notebook."""
        renew_in_children(self)

    def renew(self) -> None:
        """Go on in a forked child, which publishes nothing."""
        self._lock = threading.Lock()

    @property
    def hears(self) -> bool:
        """Whether it is told now of what others publish."""
        return self._listener is not None and self._listener.connected

    def publish(self, manifest: Manifest) -> None:
        """Have what this kernel has of a notebook written in the background.

        Who listens is told where artifacts of it are new.
        """
        size = _REF_BYTES * len(manifest.artifacts)
        self._connection.write(size, partial(self._write, manifest), manifest.notebook)

    def of(self, notebook: str) -> list[Publication]:
        """Return what may be used of what was published of a notebook, newest first; of very many, some."""
        names = self._connection.read(partial(self._listed, notebook)) or []
        prefix = shared_keys.publications(notebook)
        return self._read([prefix + name for name in names[:_MOST_PUBLICATIONS]], notebook)

    def announced(self, slot: str, notebook: str) -> list[Publication]:
        """Return the publication that was announced under `slot`, if it may be used; that of others only."""
        if slot == self.own or not (is_key(slot) and slot.startswith(shared_keys.publications(notebook))):
            return []
        return self._read([slot], notebook)

    def _read(self, slots: Sequence[str], notebook: str) -> list[Publication]:
        found: list[Publication] = []
        for _, values in self._connection.read_batches(slots, _MOST_PUBLISHED):
            for slot, value in values.items():
                found += self._published(value, slot, notebook)
        return sorted(found, key=lambda each: each.published, reverse=True)

    def _published(self, value: bytes, slot: str, notebook: str) -> Iterator[Publication]:
        for found in self._entries.admitted(value, slot, Purpose.PUBLICATION):
            try:
                manifest = decode_manifest(found.unpack())
            except FormatError as error:
                self._connection.note(f"a publication was refused: {error}")
                continue
            statement = found.statement
            said = (statement.ref.type, statement.ref.key, statement.environment)
            if said == (_PUBLICATION, notebook, manifest.environment.digest):
                yield Publication(found, manifest)

    def _write(self, manifest: Manifest) -> None:
        """Write what this kernel has of a notebook, with what is there from another kernel of this publisher.

        Nothing is written, nor announced, where all of it is there and was used within a day.
        """
        notebook, signer = manifest.notebook, self._signer.fingerprint()
        publisher = {"environment": manifest.environment.digest, "host": self._signer.host, "signer": signer}
        name = keys.digest(keys.components(publisher))
        self.own = slot = shared_keys.publications(notebook) + name
        value = self._store.get(slot)
        published = [] if value is None else list(self._published(value, slot, notebook))
        there = [each for each in published if each.found.signer == signer]
        earlier = union(manifest.environment, notebook, [each.manifest for each in there])
        whole = union(manifest.environment, notebook, [manifest, earlier])
        now = time.time()
        if _named(whole) == _named(earlier) and _last_used(earlier) > now - _DAY_SECONDS:
            return
        content = encode_manifest(whole)
        packed = pack(content)
        ref = ArtifactRef(_PUBLICATION, notebook, sha256(content), len(content), now, now)
        self._store.put(
            slot, encode_shared([self._signer.publication(manifest.environment.digest, ref, packed)])
        )
        self._list(notebook, name)
        # All who listen read it: not from each of a thousand kernels that only hit.
        if self._connection.coordinator is not None and self._entries.published != self._announced:
            self._connection.coordinator.announce(shared_keys.channel(notebook), slot.encode())
            self._announced = self._entries.published

    def _list(self, notebook: str, publisher: str) -> None:
        """Name a publisher in the notebook's list, which spares a look at all keys; the newest first.

        Of two who do so at once one may be lost, until they publish something next.
        """
        listed = self._listed(notebook)
        if publisher not in listed:
            named = [publisher, *listed][:_MOST_PUBLICATIONS]
            self._store.put(shared_keys.publishers(notebook), "\n".join(named).encode())

    def _listed(self, notebook: str) -> list[str]:
        """Return the publishers in a notebook's list, which is signed by nobody, and promises nothing."""
        value = (self._store.get(shared_keys.publishers(notebook)) or b"")[:_LISTED_BYTES]
        return [line for line in value.decode("ascii", errors="replace").split("\n") if is_sha256(line)]

    def listen(self, notebook: str, heard: Callable[[str], None]) -> None:
        """Call `heard`, on a thread of its own, with each slot under which somebody publishes from now on."""
        with self._lock:  # threads that have begun to connect may be late, and two may come at once
            if (
                self._connection.coordinator is None
                or self._listening_to == notebook
                or self._connection.closed
            ):
                return
            before, self._listening_to = self._listener, notebook
            self._listener = self._connection.coordinator.listen(
                shared_keys.channel(notebook), lambda slot: heard(slot.decode())
            )
        if before is not None:
            before.close()

    def close(self) -> None:
        """Listen no more, once the connection has stopped."""
        with self._lock:
            listener = self._listener
        if listener is not None:
            listener.close()


def _named(manifest: Manifest) -> tuple[set[tuple[str, str, str]], set[tuple[str, str, str, str]]]:
    """Return what a manifest names, whenever it was used."""
    return {ref.identity for ref in manifest.artifacts}, {graph.identity for graph in manifest.graphs}


def _last_used(manifest: Manifest) -> float:
    return max((ref.used for ref in manifest.artifacts), default=0.0)
