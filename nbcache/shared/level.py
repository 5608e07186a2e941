"""The shared level: artifacts that kernels everywhere publish and find, on a store that others use too."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from nbcache.core.errors import StoreError
from nbcache.core.model import ArtifactRef, Environment, Manifest
from nbcache.core.threads import renew_in_children
from nbcache.shared.connection import Connection
from nbcache.shared.entries import Entries
from nbcache.shared.keys import slot_of
from nbcache.shared.publications import Publication, Publications
from nbcache.shared.signing import Signer, VerifiedEntry
from nbcache.shared.single_flight import Holder, SingleFlight
from nbcache.shared.timings import USUAL, Timings
from nbcache.stores.base import Store

__all__ = ["SharedFigures", "SharedLevel"]

_WORTH = 5
"""A lookup that finds something may take so many times as long as one in vain: it spares a compile."""
_MOST_FOR_OTHERS = 1800.0
"""Seconds that one cell waits for other kernels, whatever comes of it."""


@dataclass(frozen=True, slots=True)
class SharedFigures:
    """What a kernel has had from a shared store, and given to it."""

    name: str
    found: int
    """Artifacts that were found there and may be used, read ahead ones included."""
    published: int
    """Artifacts that this kernel has put there."""
    waiting: int
    """Bytes that are still to be written."""
    off: str | None
    """Why it is not asked, or not written to, now; None where it is both."""


class SharedLevel:
    """One shared store, as one kernel uses it. Safe to call from any thread; no method raises StoreError.

    `wait_seconds` is how long the lookups of one cell that found nothing may take together; then the rest of
    the cell does not ask. `say` is given one-line notices.
    """

    def __init__(
        self,
        store: Store,
        signer: Signer,
        *,
        wait_seconds: float,
        say: Callable[[str], None],
        timings: Timings = USUAL,
    ) -> None:
        self.store = store
        self.timings = timings
        self.connection = Connection(store, say, timings)
        self._signer = signer
        self._say = say
        self._wait_seconds = wait_seconds
        self._waited = self._in_vain = self._for_others = 0.0
        self._entries = Entries(self.connection, signer)
        self._publications = Publications(self.connection, self._entries, signer)
        self._flights: SingleFlight | None = None
        if (coordinator := self.connection.coordinator) is not None:
            self._flights = SingleFlight(
                coordinator,
                signer.user,
                signer.host,
                sign=self._sign,
                signer_of=signer.signer_of,
                timings=timings,
            )
        renew_in_children(self)

    def renew(self) -> None:
        """Go on in a forked child, which waits for nobody."""
        self._flights = None

    @property
    def name(self) -> str:
        """What to call it in reports; holds no secret."""
        return self.store.name

    @property
    def failure(self) -> StoreError | None:
        """Why it is not read, or not written to, now; None where it is both."""
        return self.connection.failure

    def introduce(self, fingerprint: str, user: str, host: str) -> str:
        """Return what to call a signer, as `Signer.introduce` does."""
        return self._signer.introduce(fingerprint, user, host)

    def figures(self) -> SharedFigures:
        """Return what there was to find and to publish so far."""
        off = None if self.failure is None else self.failure.what
        entries, pending = self._entries, self.connection.pending
        return SharedFigures(self.name, entries.found, entries.published, pending, off)

    def ask(self) -> None:
        """Ask whether it answers again, where it is off; within its timeouts."""
        self.connection.ask()

    def begin_cell(self) -> None:
        """Allow the lookups of another cell to wait."""
        self._waited = self._in_vain = self._for_others = 0.0

    def close(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for what is to be written, and let go of everything. Idempotent."""
        if self.connection.closed:
            return
        self.flush(timeout)
        self.connection.stop()
        self._publications.close()
        if self._flights is not None:
            self._flights.close(release=self.failure is None)
        self.connection.close()

    def flush(self, timeout: float | None) -> bool:
        """Wait until all is published; False where `timeout` seconds were too few, or the store is off."""
        return self.connection.flush(timeout)

    # --- lookups --------------------------------------------------------------------------------

    def find(self, environment: Environment, type: str, key: str) -> list[VerifiedEntry]:
        """Return what may be used under torch's `key`, newest first, in one round trip."""
        if self._is_slow():
            return []
        began = time.monotonic()
        found = self.connection.read(partial(self._entries.find, environment, type, key)) or []
        spent = time.monotonic() - began
        self._waited_in_vain(spent / _WORTH if found else spent)
        return found

    def present(self, environment: Environment, refs: Iterable[ArtifactRef]) -> list[ArtifactRef]:
        """Return those of `refs` under whose keys there is something, whoever compiled it; reads nothing."""
        slots = {slot_of(environment, ref.type, ref.key): ref for ref in refs}
        there = self.connection.read(partial(self.connection.store.present, list(slots))) or ()
        return [ref for slot, ref in slots.items() if slot in there]

    def find_many(
        self, environment: Environment, refs: Iterable[ArtifactRef], *, most_bytes: int
    ) -> Iterator[VerifiedEntry]:
        """Yield what may be used of these, some in each round trip, until it has read `most_bytes`.

        What may not be used counts as well.
        """
        slots = {slot_of(environment, ref.type, ref.key): ref for ref in refs}
        for _, values in self.connection.read_batches(list(slots), most_bytes):
            for slot, value in values.items():
                yield from self._entries.judged(value, slot, environment, slots[slot].type, slots[slot].key)

    def _is_slow(self) -> bool:
        """Tell whether this cell has waited in vain for as long as it may."""
        return self._waited > self._wait_seconds

    def _waited_in_vain(self, seconds: float) -> None:
        self._waited += seconds
        if self._is_slow() and self.connection.reading.failure is None:
            self._say(f"{self.name} is slow: the rest of this cell does not ask it")

    # --- one compile for many kernels -----------------------------------------------------------

    def wait_for_other_kernel(
        self,
        environment: Environment,
        type: str,
        key: str,
        expected: float,
        tell: Callable[[Holder | None], None],
        tried: Collection[str] = (),
    ) -> list[VerifiedEntry]:
        """Return what another kernel publishes under `key` meanwhile; empty where this one is to compile it.

        Waits while somebody else compiles it, at most the `expected` seconds, and in one cell no longer than
        that for all that did not come. Then, or when `compiled` is called, the others may go on. What is
        there and was `tried`, by digest, is not what it waits for.
        """
        flights = self._flights
        if flights is None or not self.connection.can_write or self._is_slow():
            return []
        slot = slot_of(environment, type, key)
        began, waits = time.monotonic(), False
        patience = max(0.0, min(expected - self._in_vain, _MOST_FOR_OTHERS - self._for_others))

        def arrived() -> list[VerifiedEntry] | None:
            found = self._entries.find(environment, type, key)
            return [each for each in found if each.statement.ref.digest not in tried] or None

        def told(holder: Holder | None) -> None:
            nonlocal waits
            waits = True
            tell(holder)

        try:
            found = flights.wait(slot, arrived, expected, told, patience) or []
        except StoreError as error:
            self.connection.fails(error)
            found = []
        spent = time.monotonic() - began
        if waits:
            self._for_others += spent
            self._in_vain += 0.0 if found else spent
        elif not found:
            self._waited_in_vain(spent)
        return found

    def _sign(self, content: bytes) -> bytes:
        """Return a signature; the time that it takes is none that the store has cost."""
        began = time.monotonic()
        try:
            return self._signer.sign(content)
        finally:
            self._waited -= time.monotonic() - began

    def compiled(self, environment: Environment, type: str, key: str) -> None:
        """Let others go on, once all that was handed to `publish` before is written, or could not be."""
        flights = self._flights
        if flights is not None and not self.connection.closed:
            self.connection.after_writes(partial(self._let_go, flights, slot_of(environment, type, key)))

    def _let_go(self, flights: SingleFlight, slot: str) -> None:
        if not self.connection.can_read:
            flights.forget(slot)
            return
        try:
            flights.done(slot)
        except StoreError as error:
            self.connection.fails_to_write(error)

    # --- writing --------------------------------------------------------------------------------

    def absent(self, environment: Environment, refs: Iterable[ArtifactRef]) -> list[ArtifactRef]:
        """Return those of `refs` under whose keys neither who compiled them has anything, nor the user."""
        return self._entries.absent(environment, refs)

    def publish(self, environment: Environment, ref: ArtifactRef, packed: Callable[[], bytes | None]) -> None:
        """Have an artifact written in the background; `packed` returns its content as `pack` makes it.

        Nothing is where `packed` returns None.
        """
        slot, known = slot_of(environment, ref.type, ref.key), self._entries.known
        if self.connection.closed or (slot, ref.digest) in known:
            return
        known.add((slot, ref.digest))
        if (content := packed()) is None:
            return
        write = partial(self._write, slot, environment, ref, content)
        if not self.connection.write(len(content), write, slot):
            known.discard((slot, ref.digest))

    def _write(self, slot: str, environment: Environment, ref: ArtifactRef, packed: bytes) -> None:
        if self._flights is None or self._flights.may_publish(slot):
            self._entries.write(slot, environment, ref, packed)

    def withdraw(self, environment: Environment, type: str, key: str, digest: str) -> None:
        """Have the artifact of this digest removed in the background, whoever has published it."""
        if not self.connection.closed:
            slot = slot_of(environment, type, key)
            self.connection.write(0, partial(self._entries.withdraw, slot, digest), slot)

    # --- what kernels have of a notebook --------------------------------------------------------

    def publish_manifest(self, manifest: Manifest) -> None:
        """Have what this kernel has of a notebook written in the background, and others told of it."""
        if not self.connection.closed:
            self._publications.publish(manifest)

    def publications(self, notebook: str) -> list[Publication]:
        """Return what may be used of what was published of a notebook, newest first; of very many, some."""
        return self._publications.of(notebook)

    def publication(self, slot: str, notebook: str) -> list[Publication]:
        """Return the publication that was announced under `slot`, if it may be used; that of others only."""
        return self._publications.announced(slot, notebook)

    @property
    def hears(self) -> bool:
        """Whether it is told now of what others publish."""
        return self._publications.hears

    def listen(self, notebook: str, heard: Callable[[str], None]) -> None:
        """Call `heard`, on a thread of its own, with each slot under which somebody publishes from now on."""
        self._publications.listen(notebook, heard)
