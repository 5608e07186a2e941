"""The shared level: a store in which kernels publish and find signed artifacts and manifests.

Each value that is read passes these checks: signature, length, policy, digest, and that its statement is of
the requested key. Only then is it decompressed. A value that fails is ignored, with one notice.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from nbcache.core import key as keys
from nbcache.core.errors import (
    BadSignature,
    FormatError,
    NbcacheError,
    StoreError,
    TrustError,
    UnsupportedVersion,
    UntrustedSigner,
)
from nbcache.core.key import is_sha256, sha256
from nbcache.core.log import logger
from nbcache.core.model import ArtifactRef, Environment, Manifest, Provenance
from nbcache.core.signature import Purpose
from nbcache.core.threads import renew_in_children
from nbcache.sharing.live import layout
from nbcache.sharing.live.connection import USUAL, Connection, Timings
from nbcache.sharing.live.layout import MAX_VARIANTS, Variant, decode_shared, encode_shared, slot_of
from nbcache.sharing.live.signing import Signer, VerifiedEntry
from nbcache.sharing.live.single_flight import Holder, SingleFlight
from nbcache.sharing.provenance import Statement, signed_by
from nbcache.storage.backends.base import MAX_VALUE_BYTES, Store
from nbcache.storage.compatibility import scope
from nbcache.storage.encoding import decode_manifest, encode_manifest, pack
from nbcache.storage.manifests import union
from nbcache.storage.types import type_of

_WORTH = 5
"""A lookup that hits may take so many times as long as one that misses, since it saves a compile."""
_MOST_COMPARED = 256 << 20
_OVERHEAD_BYTES = 1 << 20
_MOST_STRANGERS = 3
_PUTS = 3
_PUBLICATION = "publication"
"""A type that torch never looks up."""
_MOST_PUBLICATIONS, _MOST_PUBLISHED = 128, 16 << 20
"""Bounds on a notebook's publications and their bytes: a team may have thousands for a common name."""
_LISTED_BYTES = 65 * _MOST_PUBLICATIONS
_REF_BYTES = 400
_DAY_SECONDS = 86400.0


@dataclass(frozen=True, slots=True)
class SharedFigures:
    name: str
    found: int
    published: int
    waiting: int
    off: str | None


@dataclass(frozen=True, slots=True)
class Publication:
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


class SharedLevel(Connection):
    """A kernel's shared store, for any thread. A cell stops lookups after `wait_seconds` of misses."""

    def __init__(
        self,
        store: Store,
        signer: Signer,
        *,
        wait_seconds: float,
        say: Callable[[str, str], None],
        timings: Timings = USUAL,
    ) -> None:
        super().__init__(store, say, timings)
        self.introduce = signer.introduce
        self.holder: Holder | None = None
        self._signer = signer
        self._wait_seconds = wait_seconds
        self._waited = self._fruitless = 0.0
        self._found = self._published = 0
        self._known: set[tuple[str, str]] = set()
        self._refused: set[str] = set()
        self._strangers: set[str] = set()
        self._flights = None if self.leases is None else SingleFlight(self.leases, signer, timings)
        renew_in_children(self)

    def renew(self) -> None:
        super().renew()
        self._flights = self.holder = None

    def figures(self) -> SharedFigures:
        return SharedFigures(self.name, self._found, self._published, self.pending, self.why_off or None)

    def begin_cell(self) -> None:
        self._waited = self._fruitless = 0.0

    def close(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for pending writes, then release everything. Idempotent."""
        if self.closed:
            return
        self.flush(timeout)
        self.stop()
        if self._flights is not None:
            self._flights.close(release=self.failure is None)
        self.store.close()

    # --- lookups --------------------------------------------------------------------------------

    def find(self, environment: Environment, type: str, key: str) -> list[VerifiedEntry]:
        """Return the usable entries under torch's `key`, newest first, in one round trip."""
        if self._is_slow():
            return []
        began = time.monotonic()
        entries = self.read(partial(self._look_up, environment, type, key)) or []
        spent = time.monotonic() - began
        self._add_fruitless_wait(spent / _WORTH if entries else spent)
        return entries

    def present(self, environment: Environment, refs: Iterable[ArtifactRef]) -> list[ArtifactRef]:
        """Return the `refs` for which any signer has published an entry, without reading the entries."""
        slots = {slot_of(environment, ref.type, ref.key): ref for ref in refs}
        stored_slots = self.read(partial(self.store.present, list(slots))) or ()
        return [ref for slot, ref in slots.items() if slot in stored_slots]

    def find_many(
        self, environment: Environment, refs: Iterable[ArtifactRef], *, most_bytes: int
    ) -> Iterator[VerifiedEntry]:
        """Yield the usable entries for `refs`, until `most_bytes` of usable and other entries are read."""
        slots = {slot_of(environment, ref.type, ref.key): ref for ref in refs}
        for _, values in self.read_batches(list(slots), most_bytes):
            for slot, value in values.items():
                yield from self._usable(value, environment, slots[slot].type, slots[slot].key)

    def _look_up(self, environment: Environment, type: str, key: str) -> list[VerifiedEntry]:
        value = self.store.get(slot_of(environment, type, key))
        return [] if value is None else self._usable(value, environment, type, key)

    def _usable(self, value: bytes, environment: Environment, type: str, key: str) -> list[VerifiedEntry]:
        entries, slot = [], slot_of(environment, type, key)
        for entry in self._admit(value, slot):
            if _binding(entry.statement) == (scope(environment, type), type, key):
                entries.append(entry)
            else:
                self.note("an entry is not used: it was signed for another graph", "refused")
        self._known.update((slot, entry.statement.ref.digest) for entry in entries)
        self._found += len(entries)
        return entries

    def _admit(self, value: bytes, slot: str, purpose: Purpose = Purpose.ARTIFACT) -> Iterator[VerifiedEntry]:
        """Yield the variants that trusted signers have signed; notices show no text from others."""
        try:
            variants = decode_shared(value)
        except FormatError as error:
            self._refuse(slot, error)
            return
        for variant in variants:
            try:
                yield self._signer.check(variant, purpose)
            except (BadSignature, FormatError) as error:
                self._refuse(slot, error)
            except UntrustedSigner as error:
                if error.what not in self._strangers and len(self._strangers) >= _MOST_STRANGERS:
                    self.note(
                        "entries of more signers are not used, because nobody here trusts them", "refused"
                    )
                    continue
                self._strangers.add(error.what)
                self.note(f"an entry is not used: {error.with_next_step()}", "refused")
            except TrustError as error:
                self.note(f"an entry is not used: {error.with_next_step()}", "refused")

    def _refuse(self, slot: str, error: NbcacheError) -> None:
        """Give a notice with the first key that is refused for a reason; the log names all keys."""
        logger.info("refused %s: %s", slot, error)
        if error.what not in self._refused:
            self._refused.add(error.what)
            self.note(f"an entry was refused: {error} ({slot})", "refused")

    def _is_slow(self) -> bool:
        return self._waited > self._wait_seconds

    def _add_fruitless_wait(self, seconds: float) -> None:
        self._waited += seconds
        if self._is_slow() and self.can_read:
            self.say(f"{self.name} is slow: the rest of this cell does not ask it", "shared-store")

    # --- one compile for many kernels -----------------------------------------------------------

    def wait_for_other_kernel(
        self, environment: Environment, type: str, key: str, expected: float, tried: Collection[str] = ()
    ) -> list[VerifiedEntry]:
        """Return the entries that another kernel publishes under `key` while this one waits.

        The wait ends after the `expected` seconds, which also bound all fruitless waits of a cell together.
        If no entries are returned, this kernel compiles, and the others wait until it calls
        `finish_compile`. Entries whose digests were `tried` are ignored.
        """
        if self._flights is None or not self.can_write or self._is_slow():
            return []
        began, waits = time.monotonic(), False
        patience = max(0.0, expected - self._fruitless)

        def fetch_new() -> list[VerifiedEntry] | None:
            entries = self._look_up(environment, type, key)
            return [entry for entry in entries if entry.statement.ref.digest not in tried] or None

        def note_holder(holder: Holder | None) -> None:
            nonlocal waits
            waits, self.holder = True, holder

        try:
            slot = slot_of(environment, type, key)
            if entries := self._flights.wait(slot, fetch_new, expected, note_holder, patience):
                return entries
        except StoreError as error:
            self.fails(error)
        spent = time.monotonic() - began
        if waits:
            self._fruitless += spent
        else:
            self._add_fruitless_wait(spent)
        return []

    def finish_compile(self, environment: Environment, type: str, key: str) -> None:
        """Let other kernels continue, after earlier writes by `publish` have ended or failed."""
        if self._flights is not None and not self.closed:
            self._worker.submit(partial(self._release, self._flights, slot_of(environment, type, key)))

    def _release(self, flights: SingleFlight, slot: str) -> None:
        if not self.can_read:
            flights.forget(slot)
            return
        try:
            flights.done(slot)
        except StoreError as error:
            self.fails_to_write(error)

    # --- artifacts ------------------------------------------------------------------------------

    def lacks(self, environment: Environment, ref: ArtifactRef) -> bool:
        """Return whether to publish an artifact: this kernel has not seen it in the store."""
        return not self.closed and (slot_of(environment, ref.type, ref.key), ref.digest) not in self._known

    def absent(self, environment: Environment, refs: Iterable[ArtifactRef]) -> list[ArtifactRef]:
        """Return the refs for which neither their compiler nor this user has published an entry.

        Entries of other signers are ignored, since readers need not trust them. After `_MOST_COMPARED`
        bytes, the remaining refs are neither compared nor returned.
        """
        try:
            own = self._signer.keyring().fingerprint()
        except TrustError:  # publishing gives a notice
            return list(refs)
        wanted: dict[str, list[tuple[str, ArtifactRef]]] = {}
        for ref in refs:
            maker = own if ref.provenance is None else signed_by(ref.provenance)
            if maker:
                wanted.setdefault(slot_of(environment, ref.type, ref.key), []).append((maker, ref))
        lacking: list[ArtifactRef] = []
        for batch, values in self.read_batches(list(wanted), _MOST_COMPARED):
            for slot in batch:
                signers = self._signers(values.get(slot, b""), environment, wanted[slot][0][1])
                lacking += [ref for maker, ref in wanted[slot] if not signers & {own, maker}]
        return lacking

    def _signers(self, value: bytes, environment: Environment, ref: ArtifactRef) -> set[str]:
        """Return the signers, trusted or not, of a value's variants that are for the key of `ref`."""
        try:
            statements = filter(None, map(self._signer.statement_of, decode_shared(value)))
        except FormatError:
            return set()
        binding = (scope(environment, ref.type), ref.type, ref.key)
        return {signer for statement, signer in statements if _binding(statement) == binding}

    def publish(self, environment: Environment, ref: ArtifactRef, packed: bytes) -> None:
        slot = slot_of(environment, ref.type, ref.key)
        self._known.add((slot, ref.digest))
        if not self.write(len(packed), partial(self._write, slot, environment, ref, packed), slot):
            self._known.discard((slot, ref.digest))

    def withdraw(self, environment: Environment, type: str, key: str, digest: str) -> None:
        slot = slot_of(environment, type, key)
        self.write(0, partial(self._remove, slot, digest), slot)

    def _write(self, slot: str, environment: Environment, ref: ArtifactRef, packed: bytes) -> None:
        if (own_variant := self._signer.variant(environment, ref, packed)) is None:
            return
        maker = _maker_of(own_variant)
        written = False
        for _ in range(_PUTS):
            variants = self._other_variants(self.store.get(slot), maker, ref, again=written)
            if variants is None:
                break
            self.store.put(slot, encode_shared(_fair_selection([(maker, own_variant), *variants])))
            written = True
        self._published += written

    def _remove(self, slot: str, digest: str) -> None:
        for _ in range(_PUTS):
            value = self.store.get(slot)
            try:
                variants = [] if value is None else decode_shared(value)
            except FormatError:  # a newer nbcache may have written it
                return
            pairs = [(self._signer.statement_of(variant), variant) for variant in variants]
            remaining = [variant for pair, variant in pairs if pair is None or pair[0].ref.digest != digest]
            if len(remaining) == len(variants):
                return
            self.store.put(slot, encode_shared(remaining))

    def _other_variants(
        self, value: bytes | None, maker: str, ref: ArtifactRef, *, again: bool
    ) -> list[tuple[str, Variant]] | None:
        """Return the variants to keep beside `ref` of `maker`, with their signers; None to write nothing."""
        try:
            variants = [] if value is None else decode_shared(value)
        except UnsupportedVersion:
            return None  # a newer nbcache has written it
        except FormatError:
            variants = []
        to_keep: list[tuple[str, Variant]] = []
        for variant in variants:
            try:
                entry = self._signer.check(variant)
            except (UntrustedSigner, UnsupportedVersion):  # other kernels may use it
                to_keep.append((_maker_of(variant), variant))
                continue
            except (BadSignature, FormatError):
                continue
            if (entry.signer, entry.statement.ref.digest) == (maker, ref.digest):
                return None  # it is stored already
            if not (entry.signer == maker and type_of(ref.type).grows):
                to_keep.append((entry.signer, variant))
            elif ref.provenance is not None or again:
                return None  # only the maker knows which of its variants is the newest
        return to_keep

    # --- manifests of a notebook ----------------------------------------------------------------

    def publish_manifest(self, manifest: Manifest) -> None:
        size = _REF_BYTES * len(manifest.artifacts)
        self.write(size, partial(self._write_manifest, manifest), manifest.notebook)

    def publications(self, notebook: str) -> list[Publication]:
        """Return the usable publications of a notebook, newest first, up to a bound."""
        names = self.read(partial(self._publishers_of, notebook)) or []
        slots = [layout.publications(notebook) + name for name in names[:_MOST_PUBLICATIONS]]
        publications: list[Publication] = []
        for _, values in self.read_batches(slots, _MOST_PUBLISHED):
            for slot, value in values.items():
                publications += self._publications_in(value, slot, notebook)
        return sorted(publications, key=lambda publication: publication.published, reverse=True)

    def _publications_in(self, value: bytes, slot: str, notebook: str) -> Iterator[Publication]:
        """Yield the manifests of trusted signers that are signed for this notebook; others are ignored."""
        for entry in self._admit(value, slot, Purpose.PUBLICATION):
            try:
                manifest = decode_manifest(entry.unpack())
            except FormatError as error:
                self.note(f"a publication was refused: {error}", "refused")
                continue
            if _binding(entry.statement) == (manifest.environment.digest, _PUBLICATION, notebook):
                yield Publication(entry, manifest)

    def _write_manifest(self, manifest: Manifest) -> None:
        """Write a manifest, merged with this publisher's stored one, unless that one is recent and equal."""
        environment, notebook = manifest.environment, manifest.notebook
        signer = self._signer.keyring().fingerprint()
        publisher = {"environment": environment.digest, "host": self._signer.host, "signer": signer}
        name = keys.digest(keys.components(publisher))
        slot = layout.publications(notebook) + name
        published = self._publications_in(self.store.get(slot) or encode_shared([]), slot, notebook)
        manifests = [publication.manifest for publication in published if publication.found.signer == signer]
        earlier = union(environment, notebook, manifests)
        merged = union(environment, notebook, [manifest, earlier])
        timestamp = time.time()
        last_used = max((ref.used for ref in earlier.artifacts), default=0.0)
        if _identities(merged) == _identities(earlier) and last_used > timestamp - _DAY_SECONDS:
            return
        content = encode_manifest(merged)
        ref = ArtifactRef(_PUBLICATION, notebook, sha256(content), len(content), timestamp, timestamp)
        variant = self._signer.publication(environment.digest, ref, pack(content))
        self.store.put(slot, encode_shared([variant]))
        # If two kernels change the list at once, one is missing in it until it publishes again.
        listed = self._publishers_of(notebook)
        if name not in listed:
            names = [name, *listed][:_MOST_PUBLICATIONS]
            self.store.put(layout.publishers(notebook), "\n".join(names).encode())

    def _publishers_of(self, notebook: str) -> list[str]:
        """Return the publishers in a notebook's list, which is unsigned and may be wrong."""
        value = (self.store.get(layout.publishers(notebook)) or b"")[:_LISTED_BYTES]
        return [line for line in value.decode("ascii", errors="replace").split("\n") if is_sha256(line)]


def _binding(statement: Statement) -> tuple[str, str, str]:
    return statement.environment, statement.ref.type, statement.ref.key


def _maker_of(variant: Variant) -> str:
    """Return the fingerprint of a variant's signer, unchecked; empty if it is unsigned."""
    return signed_by(Provenance(variant.statement, variant.signature))


def _fair_selection(variants: Iterable[tuple[str, Variant]]) -> list[Variant]:
    """Return the variants that fit into a value: the newest of each signer, then each second one, …"""
    turns: Counter[str] = Counter()
    ordered = []
    for position, (signer, variant) in enumerate(variants):
        ordered.append((turns[signer], position, variant))
        turns[signer] += 1
    selected: dict[int, Variant] = {}
    room = MAX_VALUE_BYTES - _OVERHEAD_BYTES
    for _, position, variant in sorted(ordered, key=lambda entry: entry[:2]):
        if len(selected) < MAX_VARIANTS and len(variant.packed) <= room:
            selected[position] = variant
            room -= len(variant.packed)
    return [selected[position] for position in sorted(selected)]


def _identities(manifest: Manifest) -> tuple[set[tuple[str, str, str]], set[tuple[str, str, str, str]]]:
    return {ref.identity for ref in manifest.artifacts}, {graph.identity for graph in manifest.graphs}
