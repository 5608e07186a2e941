"""The entries of the shared level: read and judged, and written beside what others have under the same key.

What is read passes, in this order: signature, length, digest, policy, and that the statement is of the key
that was asked for. Only then is it decompressed. What fails is not there, and is said once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from nbcache.artifacts.compatibility import scope
from nbcache.artifacts.provenance import Statement, signed_by
from nbcache.artifacts.types import type_of
from nbcache.core.errors import (
    BadSignature,
    FormatError,
    NbcacheError,
    TrustError,
    UnsupportedVersion,
    UntrustedSigner,
)
from nbcache.core.log import logger
from nbcache.core.model import ArtifactRef, Environment, Provenance
from nbcache.core.signature import Purpose
from nbcache.shared.connection import Connection
from nbcache.shared.keys import slot_of
from nbcache.shared.layout import MAX_VARIANTS, Variant, decode_shared, encode_shared
from nbcache.shared.signing import Signer, VerifiedEntry
from nbcache.stores.base import MAX_VALUE_BYTES, Swapping

__all__ = ["Entries"]

_MOST_COMPARED = 256 << 20
"""Bytes that are read to tell whose the entries are that are there when a kernel connects."""
_OVERHEAD_BYTES = 1 << 20
"""What statements and signatures of a value take, and more."""
_MOST_STRANGERS = 3
"""Signers who are not trusted that are told of by name."""
_SWAPS = 10
"""How often an entry is read and written where others write it at the same time."""
_PUTS = 3
"""How often where nothing can be swapped."""


class Entries:
    """Entries of one shared store, as one kernel reads and writes them."""

    def __init__(self, connection: Connection, signer: Signer) -> None:
        self._connection = connection
        self._store = connection.store
        self._signer = signer
        self.found = 0
        """How many artifacts were found there that may be used."""
        self.published = 0
        """How many artifacts this kernel has put there."""
        self.known: set[tuple[str, str]] = set()
        """Slots, each with a digest, that are known to be in the store."""
        self._refused: set[str] = set()
        """Why values were refused."""
        self._strangers: set[str] = set()
        """What was said of signers who are not trusted."""

    def find(self, environment: Environment, type: str, key: str) -> list[VerifiedEntry]:
        """Return what may be used under torch's `key`; StoreError where the store fails."""
        slot = slot_of(environment, type, key)
        value = self._store.get(slot)
        return self.judged(value, slot, environment, type, key) if value is not None else []

    def judged(
        self, value: bytes, slot: str, environment: Environment, type: str, key: str
    ) -> list[VerifiedEntry]:
        """Return what of a value may be used under this key."""
        found = [each for each in self.admitted(value, slot) if self._is_of(each, environment, type, key)]
        self.known.update((slot, each.statement.ref.digest) for each in found)
        self.found += len(found)
        return found

    def _is_of(self, found: VerifiedEntry, environment: Environment, type: str, key: str) -> bool:
        if _place_of(found.statement) == _place(environment, type, key):
            return True
        self._connection.note("an entry that was signed for another key was refused")
        return False

    def admitted(
        self, value: bytes, slot: str, purpose: Purpose = Purpose.ARTIFACT
    ) -> Iterator[VerifiedEntry]:
        """Yield those variants whose lengths, digests and signatures are right, of trusted signers.

        What is wrong with others is said in words that quote nothing of them: anybody may have written it.
        """
        try:
            variants = decode_shared(value)
        except FormatError as error:
            self._refuse(slot, error)
            return
        for variant in variants:
            try:
                yield self._signer.checked(variant, purpose)
            except (BadSignature, FormatError) as error:
                self._refuse(slot, error)
            except UntrustedSigner as error:
                self._tell_of_stranger(error)
            except TrustError as error:
                self._connection.note(f"an entry is not used: {error.with_next_step()}")

    def _refuse(self, slot: str, error: NbcacheError) -> None:
        """Name the first key whose value is refused for a reason; the log names all keys."""
        logger.info("refused %s: %s", slot, error)
        if error.what not in self._refused:
            self._refused.add(error.what)
            self._connection.note(f"an entry was refused: {error} ({slot})")

    def _tell_of_stranger(self, error: UntrustedSigner) -> None:
        """Say that an entry is not used; of a server with many strangers, not of each."""
        if error.what not in self._strangers and len(self._strangers) >= _MOST_STRANGERS:
            self._connection.note("entries of more signers are not used: they are not trusted here")
            return
        self._strangers.add(error.what)
        self._connection.note(f"an entry is not used: {error.with_next_step()}")

    def absent(self, environment: Environment, refs: Iterable[ArtifactRef]) -> list[ArtifactRef]:
        """Return those of `refs` under whose keys neither who compiled them has anything, nor the user.

        What others have there counts for nothing: who is served here need not trust them. It is read to tell
        whose it is, some in each round trip; after very many bytes, whatever is there counts.
        """
        try:
            own = self._signer.fingerprint()
        except TrustError:  # publishing says so
            return list(refs)
        wanted: dict[str, list[tuple[str, ArtifactRef]]] = {}
        for ref in refs:
            if ref.provenance is None or (maker := signed_by(ref.provenance)):
                maker = own if ref.provenance is None else maker
                wanted.setdefault(slot_of(environment, ref.type, ref.key), []).append((maker, ref))
        found: list[ArtifactRef] = []
        slots, compared = list(wanted), 0
        for batch, values in self._connection.read_batches(slots, _MOST_COMPARED):
            compared += len(batch)
            for slot in batch:
                there = self._makers(values.get(slot, b""), environment, wanted[slot][0][1])
                found += [ref for maker, ref in wanted[slot] if not there & {own, maker}]
        if beyond := slots[compared:]:
            present = self._connection.read(partial(self._store.present, beyond))
            if present is not None:
                found += [ref for slot in beyond if slot not in present for _, ref in wanted[slot]]
        return found

    def _makers(self, value: bytes, environment: Environment, ref: ArtifactRef) -> set[str]:
        """Return who has compiled what a value holds under the key of `ref`, trusted or not."""
        try:
            said = [self._signer.said(each) for each in decode_shared(value)]
        except FormatError:
            return set()
        wanted = _place(environment, ref.type, ref.key)
        return {signer for statement, signer in filter(None, said) if _place_of(statement) == wanted}

    def write(self, slot: str, environment: Environment, ref: ArtifactRef, packed: bytes) -> None:
        """Write an artifact beside what others have under its key; StoreError where the store fails."""
        if (ours := self._signer.variant(environment, ref, packed)) is None:
            return
        by = signed_by(Provenance(ours.statement, ours.signature))

        def with_ours(value: bytes | None, again: bool) -> bytes | None:
            others = self._others(value, by, ref, again=again)
            return None if others is None else encode_shared(_fairly([(by, ours), *others]))

        self.published += self._replace(slot, with_ours)

    def withdraw(self, slot: str, digest: str) -> None:
        """Remove the artifact of this digest, whoever has signed it; StoreError where the store fails."""

        def without(value: bytes | None, again: bool) -> bytes | None:
            try:
                variants = [] if value is None else decode_shared(value)
            except FormatError:  # that of a newer nbcache, too, is left alone
                return None
            said = [(self._signer.said(each), each) for each in variants]
            left = [each for found, each in said if found is None or found[0].ref.digest != digest]
            return None if len(left) == len(variants) else encode_shared(left)

        self._replace(slot, without)

    def _replace(self, slot: str, changed: Callable[[bytes | None, bool], bytes | None]) -> bool:
        """Write what `changed` makes of a value, nothing where that is None; return whether it was written.

        `changed` hears whether it was written before: others may write at the same time.
        """
        store, written = self._store, False
        for _ in range(_SWAPS if isinstance(store, Swapping) else _PUTS):
            value = store.get(slot)
            encoded = changed(value, written)
            if encoded is None:
                break
            if isinstance(store, Swapping):
                if store.swap(slot, value, encoded):
                    return True
            else:  # another who read the same value may write later, so read it again
                store.put(slot, encoded)
                written = True
        return written

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
                there = self._signer.checked(each)
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


def _place(environment: Environment, type: str, key: str) -> tuple[str, str, str]:
    """Return what the statement of an artifact says of where it belongs."""
    return scope(environment, type), type, key


def _place_of(statement: Statement) -> tuple[str, str, str]:
    return statement.environment, statement.ref.type, statement.ref.key


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
