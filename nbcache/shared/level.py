"""The shared level: artifacts that kernels everywhere publish and find, on a store that others use too.

What is read passes, in this order: signature, length, digest, policy, and that the statement is of the key
that was asked for. Only then is it decompressed. What fails is not there, and is said once.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from nbcache.artifacts.compatibility import scope
from nbcache.artifacts.encoding import decode_manifest, encode_manifest, pack
from nbcache.artifacts.provenance import Statement, signed_by
from nbcache.artifacts.store import union
from nbcache.artifacts.types import type_of
from nbcache.core import key as keys
from nbcache.core.errors import (
    BadSignature,
    FormatError,
    NbcacheError,
    StoreError,
    StoreFull,
    StoreReadOnly,
    TrustError,
    UnsupportedVersion,
    UntrustedSigner,
)
from nbcache.core.key import sha256
from nbcache.core.model import ArtifactRef, Environment, Manifest, Provenance
from nbcache.core.threads import Worker, renew_in_children
from nbcache.core.trust import Purpose
from nbcache.shared import keys as shared_keys
from nbcache.shared.circuit_breaker import Availability
from nbcache.shared.keys import slot_of
from nbcache.shared.layout import MAX_VARIANTS, Variant, decode_shared, encode_shared
from nbcache.shared.signing import Found, Peer
from nbcache.shared.single_flight import Holder, SingleFlight
from nbcache.stores.base import MAX_VALUE_BYTES, Store, Swapping, is_key
from nbcache.stores.leases import Listener
from nbcache.stores.open import coordinator

__all__ = ["Publication", "SharedFigures", "SharedLevel"]

T = TypeVar("T")

_PUBLICATION = "publication"
"""Type of the artifact that a publication is; torch asks for none of that type."""
_MOST_PENDING = 256 << 20
"""Bytes that wait to be written; more is not published."""
_WORTH = 5
"""A lookup that finds something may take so many times as long as one in vain: it spares a compile."""
_BATCH = 16
"""Artifacts that are read ahead in one round trip: all of them have its deadline."""
_MOST_COMPARED = 256 << 20
"""Bytes that are read to tell whose the entries are that are there when a kernel connects."""
_MOST_PUBLICATIONS, _MOST_PUBLISHED = 128, 16 << 20
"""Publications of one notebook that are read, and their bytes: a team may have thousands of a common name."""
_LISTED_BYTES = 65 * _MOST_PUBLICATIONS
"""Of the list of a notebook's publishers, which has one a line, what is looked at."""
_OVERHEAD_BYTES = 1 << 20
"""What statements and signatures of a value take, and more."""
_REF_BYTES = 400
"""About what a manifest takes in memory for each artifact."""
_DAY_SECONDS = 86400.0
_HEX64 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_MOST_FOR_OTHERS = 1800.0
"""Seconds that one cell waits for other kernels, whatever comes of it."""
_MOST_STRANGERS = 3
"""Signers who are not trusted that are told of by name."""
_SWAPS = 10
"""How often an entry is read and written where others write it at the same time."""
_PROBE = "probe"
_PROBE_SECONDS = 0.001
_TRIES = 3
"""How often something is written that the store failed at; some stores fail at what is too long for them."""


@dataclass(frozen=True, slots=True)
class _Task:
    """Something to be written."""

    write: Callable[[], object]
    size: int
    """Bytes that it holds meanwhile."""
    tries: int = _TRIES


@dataclass(frozen=True, slots=True)
class Publication:
    """What one publisher has of a notebook."""

    found: Found
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

    A store that fails is left alone for a while (`Availability`), and what was to be written meanwhile waits.
    `wait_seconds` is how long the lookups of one cell that found nothing may take together; then the rest of
    the cell does not ask. `say` is given one-line notices.
    """

    def __init__(self, store: Store, peer: Peer, *, wait_seconds: float, say: Callable[[str], None]) -> None:
        self.store = store
        self._peer = peer
        self._say = say
        self._wait_seconds = wait_seconds
        self._waited = self._in_vain = self._for_others = 0.0
        self._reading = Availability(lambda: store.get(_PROBE), self._changed)
        self._writing = Availability(self._try_to_write, self._changed)
        """Off where it is full, a replica, or fails at writing alone: then it is still read."""
        self._coordinator = coordinator(store)
        self._flights: SingleFlight | None = None
        if self._coordinator is not None:
            self._flights = SingleFlight(
                self._coordinator, peer.user, peer.host, sign=self._sign, vouches=peer.vouches
            )
        self._worker = Worker(self._failed)
        self._lock = threading.Lock()
        self._pending = 0
        self._unsent: list[_Task] = []
        self._known: set[tuple[str, str]] = set()
        """Slots, each with a digest, that are known to be in the store."""
        self._strangers: set[str] = set()
        """What was said of signers who are not trusted."""
        self._found = self._published_here = 0
        self._announced = 0
        """How many artifacts it had published when it last told of that."""
        self._listener: Listener | None = None
        self._listening_to = ""
        self._own = ""
        """Where this kernel publishes what it has of its notebook."""
        self._closed = False
        renew_in_children(self)

    def renew(self) -> None:
        """Go on in a forked child, which looks up and publishes nothing."""
        self._lock = threading.Lock()
        self._flights = None
        self._closed = True

    @property
    def name(self) -> str:
        """What to call it in reports; holds no secret."""
        return self.store.name

    @property
    def failure(self) -> StoreError | None:
        """Why it is not read, or not written to, now; None where it is both."""
        return self._reading.failure or self._writing.failure

    def figures(self) -> SharedFigures:
        """Return what there was to find and to publish so far."""
        off = None if self.failure is None else self.failure.what
        return SharedFigures(self.name, self._found, self._published_here, self._pending, off)

    def ask(self) -> None:
        """Ask whether it answers again, where it is off; within its timeouts."""
        self._reading.ask()
        if self._reading.failure is None:
            self._writing.ask()

    def begin_cell(self) -> None:
        """Allow the lookups of another cell to wait."""
        self._waited = self._in_vain = self._for_others = 0.0

    def close(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for what is to be written, and let go of everything. Idempotent."""
        if self._closed:
            return
        self.flush(timeout)
        with self._lock:
            self._closed = True
        self._reading.close()
        self._writing.close()
        if self._listener is not None:
            self._listener.close()
        if self._flights is not None:
            self._flights.close(release=self.failure is None)
        self._worker.stop()
        self.store.close()

    def flush(self, timeout: float | None) -> bool:
        """Wait until all is published; False where `timeout` seconds were too few, or the store is off."""
        return self._closed or (self._worker.flush(timeout) and not self._unsent)

    # --- lookups --------------------------------------------------------------------------------

    def find(self, environment: Environment, type: str, key: str) -> list[Found]:
        """Return what may be used under torch's `key`, newest first, in one round trip."""
        if self._is_slow():
            return []
        began = time.monotonic()
        found = self._access(partial(self._find, environment, type, key)) or []
        spent = time.monotonic() - began
        self._waited_in_vain(spent / _WORTH if found else spent)
        return found

    def find_many(
        self, environment: Environment, refs: Iterable[ArtifactRef], *, most_bytes: int
    ) -> Iterator[Found]:
        """Yield what may be used of these, some in each round trip, until it has read `most_bytes`.

        What may not be used counts as well.
        """
        slots = {slot_of(environment, ref.type, ref.key): ref for ref in refs}
        wanted, read = list(slots), 0
        for start in range(0, len(wanted), _BATCH):
            if read >= most_bytes:
                return
            batch = wanted[start : start + _BATCH]
            values = self._access(partial(self.store.get_many, batch)) or {}
            read += sum(map(len, values.values()))
            for slot, value in values.items():
                yield from self._judged(value, slot, environment, slots[slot].type, slots[slot].key)

    def _is_slow(self) -> bool:
        """Tell whether this cell has waited in vain for as long as it may."""
        return self._waited > self._wait_seconds

    def _waited_in_vain(self, seconds: float) -> None:
        self._waited += seconds
        if self._is_slow() and self._reading.failure is None:
            self._say(f"{self.name} is slow: the rest of this cell does not ask it")

    def _find(self, environment: Environment, type: str, key: str) -> list[Found]:
        """Return what may be used under torch's `key`; StoreError where the store fails."""
        slot = slot_of(environment, type, key)
        value = self.store.get(slot)
        return self._judged(value, slot, environment, type, key) if value is not None else []

    def _judged(self, value: bytes, slot: str, environment: Environment, type: str, key: str) -> list[Found]:
        """Return what of a value may be used under this key."""
        found = [each for each in self._admitted(value) if self._is_of(each, environment, type, key)]
        self._known.update((slot, each.statement.ref.digest) for each in found)
        self._found += len(found)
        return found

    def _is_of(self, found: Found, environment: Environment, type: str, key: str) -> bool:
        if _place_of(found.statement) == _place(environment, type, key):
            return True
        self._say(f"{self.name}: an entry that was signed for another key was refused")
        return False

    def _admitted(self, value: bytes, purpose: Purpose = Purpose.ARTIFACT) -> Iterator[Found]:
        """Yield those variants whose lengths, digests and signatures are right, of trusted signers.

        What is wrong with others is said in words that quote nothing of them: anybody may have written it.
        """
        try:
            variants = decode_shared(value)
        except FormatError as error:
            self._say(f"{self.name}: an entry was refused: {error}")
            return
        for variant in variants:
            try:
                yield self._peer.checked(variant, purpose)
            except (BadSignature, FormatError) as error:
                self._say(f"{self.name}: an entry was refused: {error}")
            except UntrustedSigner as error:
                self._tell_of_stranger(error)
            except TrustError as error:
                self._say(f"{self.name}: an entry is not used: {error}. Next: {error.next_step}")

    def _tell_of_stranger(self, error: UntrustedSigner) -> None:
        """Say that an entry is not used; of a server with many strangers, not of each."""
        if error.what not in self._strangers and len(self._strangers) >= _MOST_STRANGERS:
            self._say(f"{self.name}: entries of more signers are not used: they are not trusted here")
            return
        self._strangers.add(error.what)
        self._say(f"{self.name}: an entry is not used: {error}. Next: {error.next_step}")

    # --- one compile for many kernels -----------------------------------------------------------

    def await_other(
        self,
        environment: Environment,
        type: str,
        key: str,
        expected: float,
        tell: Callable[[Holder | None], None],
        tried: Collection[str] = (),
    ) -> list[Found]:
        """Return what another kernel publishes under `key` meanwhile; empty where this one is to compile it.

        Waits while somebody else compiles it, at most the `expected` seconds, and in one cell no longer than
        that for all that did not come. Then, or when `compiled` is called, the others may go on. What is
        there and was `tried`, by digest, is not what it waits for.
        """
        flights = self._flights
        if flights is None or not self._may_write() or self._is_slow():
            return []
        slot = slot_of(environment, type, key)
        began, waits = time.monotonic(), False
        patience = max(0.0, min(expected - self._in_vain, _MOST_FOR_OTHERS - self._for_others))

        def arrived() -> list[Found] | None:
            found = self._find(environment, type, key)
            return [each for each in found if each.statement.ref.digest not in tried] or None

        def told(holder: Holder | None) -> None:
            nonlocal waits
            waits = True
            tell(holder)

        try:
            found = flights.wait(slot, arrived, expected, told, patience) or []
        except StoreError as error:
            self._fails(error)
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
            return self._peer.sign(content)
        finally:
            self._waited -= time.monotonic() - began

    def compiled(self, environment: Environment, type: str, key: str) -> None:
        """Let others go on, once all that was handed to `publish` before is written, or could not be."""
        flights = self._flights
        if flights is not None and not self._closed:
            self._worker.submit(partial(self._let_go, flights, slot_of(environment, type, key)))

    def _let_go(self, flights: SingleFlight, slot: str) -> None:
        if self._reading.failure is not None or self._closed:
            flights.forget(slot)
            return
        try:
            flights.done(slot)
        except StoreError as error:
            self._fails_to_write(error)

    # --- writing --------------------------------------------------------------------------------

    def absent(self, environment: Environment, refs: Iterable[ArtifactRef]) -> list[ArtifactRef]:
        """Return those of `refs` under whose keys neither who compiled them has anything, nor the user.

        What others have there counts for nothing: who is served here need not trust them. It is read to tell
        whose it is, some in each round trip; after very many bytes, whatever is there counts.
        """
        try:
            own = self._peer.fingerprint()
        except TrustError:  # publishing says so
            return list(refs)
        wanted: dict[str, list[tuple[str, ArtifactRef]]] = {}
        for ref in refs:
            if ref.provenance is None or (maker := signed_by(ref.provenance)):
                maker = own if ref.provenance is None else maker
                wanted.setdefault(slot_of(environment, ref.type, ref.key), []).append((maker, ref))
        found: list[ArtifactRef] = []
        slots, read = list(wanted), 0
        for start in range(0, len(slots), _BATCH):
            if read >= _MOST_COMPARED:
                present = self._access(partial(self.store.present, slots[start:]))
                beyond = [] if present is None else [slot for slot in slots[start:] if slot not in present]
                return [*found, *(ref for slot in beyond for _, ref in wanted[slot])]
            batch = slots[start : start + _BATCH]
            values = self._access(partial(self.store.get_many, batch))
            if values is None:
                break
            for slot in batch:
                value = values.get(slot, b"")
                read += len(value)
                there = self._makers(value, environment, wanted[slot][0][1])
                found += [ref for maker, ref in wanted[slot] if not there & {own, maker}]
        return found

    def _makers(self, value: bytes, environment: Environment, ref: ArtifactRef) -> set[str]:
        """Return who has compiled what a value holds under the key of `ref`, trusted or not."""
        try:
            said = [self._peer.said(each) for each in decode_shared(value)]
        except FormatError:
            return set()
        wanted = _place(environment, ref.type, ref.key)
        return {signer for statement, signer in filter(None, said) if _place_of(statement) == wanted}

    def publish(self, environment: Environment, ref: ArtifactRef, packed: Callable[[], bytes | None]) -> None:
        """Have an artifact written in the background; `packed` returns its content as `pack` makes it.

        Nothing is where `packed` returns None.
        """
        slot = slot_of(environment, ref.type, ref.key)
        if self._closed or (slot, ref.digest) in self._known:
            return
        self._known.add((slot, ref.digest))
        if (content := packed()) is None:
            return
        if not self._submit(len(content), partial(self._write, slot, environment, ref, content)):
            self._known.discard((slot, ref.digest))

    def publish_manifest(self, manifest: Manifest) -> None:
        """Have what this kernel has of a notebook written in the background.

        Who listens is told where artifacts of it are new.
        """
        if self._closed:
            return
        self._submit(_REF_BYTES * len(manifest.artifacts), partial(self._write_manifest, manifest))

    def publications(self, notebook: str) -> list[Publication]:
        """Return what may be used of what was published of a notebook, newest first; of very many, some."""
        names = self._access(partial(self._listed, notebook)) or []
        prefix = shared_keys.publications(notebook)
        return self._publications([prefix + name for name in names[:_MOST_PUBLICATIONS]], notebook)

    def publication(self, slot: str, notebook: str) -> list[Publication]:
        """Return the publication that was announced under `slot`, if it may be used; that of others only."""
        if slot == self._own or not (is_key(slot) and slot.startswith(shared_keys.publications(notebook))):
            return []
        return self._publications([slot], notebook)

    def _publications(self, slots: Sequence[str], notebook: str) -> list[Publication]:
        found: list[Publication] = []
        read = 0
        for start in range(0, len(slots), _BATCH):
            if read >= _MOST_PUBLISHED:
                break
            values = self._access(partial(self.store.get_many, slots[start : start + _BATCH])) or {}
            for value in values.values():
                read += len(value)
                found += self._published(value, notebook)
        return sorted(found, key=lambda each: each.published, reverse=True)

    def _published(self, value: bytes, notebook: str) -> Iterator[Publication]:
        for found in self._admitted(value, Purpose.PUBLICATION):
            try:
                manifest = decode_manifest(found.unpack())
            except FormatError as error:
                self._say(f"{self.name}: a publication was refused: {error}")
                continue
            statement = found.statement
            said = (statement.ref.type, statement.ref.key, statement.environment)
            if said == (_PUBLICATION, notebook, manifest.environment.digest):
                yield Publication(found, manifest)

    def _write(self, slot: str, environment: Environment, ref: ArtifactRef, packed: bytes) -> None:
        if self._flights is not None and not self._flights.may_publish(slot):
            return
        if (ours := self._peer.variant(environment, ref, packed)) is None:
            return
        by = signed_by(Provenance(ours.statement, ours.signature))
        store, written = self.store, False
        swaps = _SWAPS if isinstance(store, Swapping) else 0
        for attempt in range(swaps + _TRIES):
            value = store.get(slot)
            others = self._others(value, by, ref, again=written)
            if others is None:
                break
            encoded = encode_shared(_fairly([(by, ours), *others]))
            if not isinstance(store, Swapping) or attempt >= swaps:
                # Who has read before may write after it, so it is read again.
                store.put(slot, encoded)
                written = True
            elif store.swap(slot, value, encoded):
                written = True
                break
        self._published_here += written

    def _others(
        self, value: bytes | None, by: str, ref: ArtifactRef, *, again: bool
    ) -> list[tuple[str, Variant]] | None:
        """Return what is kept beside `ref`, which `by` has compiled, each with its signer.

        None where nothing is to be written: it is there, or one of `by` that has replaced it since.
        """
        others: list[Variant] = []
        if value is not None:
            try:
                others = decode_shared(value)
            except UnsupportedVersion:
                return None  # a newer nbcache's: it is left alone
            except FormatError:
                pass
        kept: list[tuple[str, Variant]] = []
        for each in others:
            signer = signed_by(Provenance(each.statement, each.signature))
            try:
                there = self._peer.checked(each)
                grows = there.signer == by and type_of(ref.type).grows
                if (there.signer, there.statement.ref.digest) == (by, ref.digest):
                    return None  # it is there already
                if grows and (ref.provenance is not None or again):
                    return None  # who passes on does not know which of another's is the newest
                if not grows:
                    kept.append((signer, each))
            except (UntrustedSigner, UnsupportedVersion):  # others may trust them, or know that version
                kept.append((signer, each))
            except (BadSignature, FormatError):
                continue
        return kept

    def _write_manifest(self, manifest: Manifest) -> None:
        """Write what this kernel has of a notebook, with what is there from another kernel of this publisher.

        Nothing is written, nor announced, where all of it is there and was used within a day.
        """
        notebook, signer = manifest.notebook, self._peer.fingerprint()
        publisher = {"environment": manifest.environment.digest, "host": self._peer.host, "signer": signer}
        name = keys.digest(keys.components(publisher))
        self._own = slot = shared_keys.publications(notebook) + name
        value = self.store.get(slot)
        published = [] if value is None else list(self._published(value, notebook))
        there = [each for each in published if each.found.signer == signer]
        earlier = union(manifest.environment, notebook, [each.manifest for each in there])
        whole = union(manifest.environment, notebook, [manifest, earlier])
        now = time.time()
        if _named(whole) == _named(earlier) and _last_used(earlier) > now - _DAY_SECONDS:
            return
        content = encode_manifest(whole)
        packed = pack(content)
        ref = ArtifactRef(_PUBLICATION, notebook, sha256(content), len(content), now, now)
        self.store.put(
            slot, encode_shared([self._peer.publication(manifest.environment.digest, ref, packed)])
        )
        self._list(notebook, name)
        # All who listen read it: not from each of a thousand kernels that only hit.
        if self._coordinator is not None and self._published_here != self._announced:
            self._coordinator.announce(shared_keys.channel(notebook), slot.encode())
            self._announced = self._published_here

    def _list(self, notebook: str, publisher: str) -> None:
        """Name a publisher in the notebook's list, which spares a look at all keys; the newest first.

        Of two who do so at once one may be lost, until they publish something next.
        """
        listed = self._listed(notebook)
        if publisher not in listed:
            named = [publisher, *listed][:_MOST_PUBLICATIONS]
            self.store.put(shared_keys.publishers(notebook), "\n".join(named).encode())

    def _listed(self, notebook: str) -> list[str]:
        """Return the publishers in a notebook's list, which is signed by nobody, and promises nothing."""
        value = (self.store.get(shared_keys.publishers(notebook)) or b"")[:_LISTED_BYTES]
        return [
            line for line in value.decode("ascii", errors="replace").split("\n") if _HEX64.fullmatch(line)
        ]

    def _submit(self, size: int, write: Callable[[], object]) -> bool:
        """Have the worker do `write`, which holds so many bytes; where the store is off, once it is back.

        Returns False where too much waits already.
        """
        with self._lock:
            if self._pending + size > _MOST_PENDING:
                self._say(f"{self.name}: more waits to be written than is kept; some is not shared")
                return False
            self._pending += size
        self._worker.submit(partial(self._do, _Task(write, size)))
        return True

    def _do(self, task: _Task) -> None:
        left = None
        try:
            if self._may_write():
                task.write()
            else:
                left = task
        except StoreError as error:
            self._fails_to_write(error)
            left = replace(task, tries=task.tries - 1)
        finally:
            with self._lock:
                if left is not None and left.tries:
                    self._unsent.append(left)
                else:
                    self._pending -= task.size
        if left is not None and not left.tries:
            self._say(f"{self.name}: something could not be written {_TRIES} times, and is not shared")
        elif left is not None and self._may_write():  # it is back just now
            self._send_again()

    def _send_again(self) -> None:
        """Have written what waits for that."""
        with self._lock:
            unsent, self._unsent = self._unsent, []
        for task in unsent:
            self._worker.submit(partial(self._do, task))

    def _try_to_write(self) -> None:
        """Raise StoreError unless the store can be written to, and coordinates where it did."""
        self.store.put(_PROBE, b"")
        if self._coordinator is not None:
            self._coordinator.claim(_PROBE, b"", _PROBE_SECONDS)

    # --- hearing --------------------------------------------------------------------------------

    def listen(self, notebook: str, heard: Callable[[str], None]) -> None:
        """Call `heard`, on a thread of its own, with each slot under which somebody publishes from now on."""
        with self._lock:  # threads that have begun to connect may be late, and two may come at once
            if self._coordinator is None or self._listening_to == notebook or self._closed:
                return
            before, self._listening_to = self._listener, notebook
            self._listener = self._coordinator.listen(
                shared_keys.channel(notebook), lambda slot: heard(slot.decode())
            )
        if before is not None:
            before.close()

    # --- faults ---------------------------------------------------------------------------------

    def _access(self, action: Callable[[], T]) -> T | None:
        """Return what `action` returns; None where the store is off, or fails, which turns it off."""
        if self._reading.failure is not None or self._closed:
            return None
        try:
            return action()
        except StoreError as error:
            self._fails(error)
            return None

    def _may_write(self) -> bool:
        return self.failure is None and not self._closed

    def _fails(self, error: StoreError) -> None:
        """Leave alone what somebody waited for in vain."""
        if not isinstance(error, StoreFull | StoreReadOnly):
            self._reading.failed(error)
        self._writing.failed(error)

    def _fails_to_write(self, error: StoreError) -> None:
        """Leave off writing, and reading only where that fails as well; for threads that nobody waits for."""
        if not isinstance(error, StoreFull | StoreReadOnly):
            try:
                self.store.get(_PROBE)
            except StoreError as fault:
                self._fails(fault)
                return
        self._writing.failed(error)

    def _changed(self, error: StoreError | None) -> None:
        if error is None:
            if self.failure is None:
                self._say(f"{self.name} answers again")
                self._send_again()
            return
        if error is self._writing.failure and self._reading.failure is not None:  # of reading it was said
            return
        next_step = f" Next: {error.next_step}." if error.next_step else ""
        until = "written to until it can be" if self._reading.failure is None else "asked until it answers"
        self._say(f"{self.name}: {error.what}, so it is not {until} again.{next_step}")

    def _failed(self, error: Exception) -> None:
        if isinstance(error, NbcacheError):
            next_step = f" Next: {error.next_step}" if error.next_step else ""
            self._say(f"{self.name}: what was compiled is not shared: {error}.{next_step}")
        else:  # a bug of ours must not go unseen
            self._say(f"sharing what was compiled failed unexpectedly, please report it: {error!r}")


def _place(environment: Environment, type: str, key: str) -> tuple[str, str, str]:
    """Return what the statement of an artifact says of where it belongs."""
    return scope(environment, type), type, key


def _place_of(statement: Statement) -> tuple[str, str, str]:
    return statement.environment, statement.ref.type, statement.ref.key


def _named(manifest: Manifest) -> tuple[set[tuple[str, str, str]], set[tuple[str, str, str, str]]]:
    """Return what a manifest names, whenever it was used."""
    return {ref.identity for ref in manifest.artifacts}, {graph.identity for graph in manifest.graphs}


def _fairly(variants: Iterable[tuple[str, Variant]]) -> list[Variant]:
    """Return as many variants as a value may hold, in number and length: nobody's crowd out all others'.

    First the newest of each signer, then the second of each, and so on.
    """
    turns: Counter[str] = Counter()
    ordered = []
    for place, (signer, variant) in enumerate(variants):
        ordered.append((turns[signer], place, variant))
        turns[signer] += 1
    chosen: list[tuple[int, int, Variant]] = []
    left = MAX_VALUE_BYTES - _OVERHEAD_BYTES
    for each in sorted(ordered, key=lambda each: each[:2]):
        if len(chosen) < MAX_VARIANTS and len(each[2].packed) <= left:
            chosen.append(each)
            left -= len(each[2].packed)
    return [variant for _, _, variant in sorted(chosen, key=lambda each: each[1])]


def _last_used(manifest: Manifest) -> float:
    return max((ref.used for ref in manifest.artifacts), default=0.0)
