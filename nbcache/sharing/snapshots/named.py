"""Snapshots in a store, under names that a team chooses: `redis://host/0#team/gpt`.

Keys have these prefixes. Nothing else may use them, so a kernel's local store is unsuitable::

    artifact/<SHA-256 of the value>             one zstd frame, as in a snapshot file; versions share it
    snapshot/<name>/<SHA-256 of the value>      a snapshot file without artifacts: manifest and signature
    doomed/<as below artifact/>                 a mark: Unix seconds, as text, since when no snapshot names it

A name is one part of a key. Characters other than `a-z 0-9 -` are encoded as `_` and two hexadecimal digits
for each byte of their UTF-8, so `team/gpt` becomes `team_2fgpt`.

A name may have several versions at once. Readers read all of them, and check each separately. A writer merges
its own versions, puts the missing artifacts, then the merged version, and deletes the earlier ones. So no
writer loses the data of another, and none waits. Versions of other signers stay, trusted or not: nobody signs
for others, and nobody can block a name.

`collect_garbage` removes artifacts that no version names, in two runs: the first marks them, one after a
grace removes them. A writer deletes the marks of all that it names, before it looks for missing artifacts and
again after writing its version. Then it puts artifacts that were removed meanwhile. So a named one is lost
only if the collector halts, between reading a mark and deleting, for as long as a writer takes for all that.
The next snapshot of a user who has it puts it again. A version that lacks an artifact is refused.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field

from nbcache.core.errors import (
    BadSignature,
    ConfigError,
    CorruptSnapshot,
    FormatError,
    MissingArtifact,
    NbcacheError,
    SnapshotError,
    StoreError,
    UnsupportedVersion,
    UntrustedSigner,
)
from nbcache.core.key import is_sha256, sha256
from nbcache.core.model import Packed
from nbcache.sharing.snapshots.build import Draft, Origin, Taken, merge_into_existing, sign
from nbcache.sharing.snapshots.file import (
    MAX_ARTIFACTS,
    MAX_SNAPSHOT_BYTES,
    SnapshotFile,
    decode_file,
    encode_file,
    refusal,
)
from nbcache.sharing.snapshots.verify import (
    Received,
    errors_at,
    is_own,
    is_vouched,
    packed_bytes,
    read_manifest,
    without,
)
from nbcache.sharing.trust import Keyring
from nbcache.storage.backends.base import Store, batches, read_batches
from nbcache.storage.backends.open import open_store
from nbcache.storage.encoding import decode_snapshot

_SNAPSHOTS = "snapshot/"
_LONGEST, _LONGEST_PART = 100, 200
"""Characters of a name, and of the part of a key that encodes it, which filesystems bound."""
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")
_ENCODED = re.compile(r"(?:[a-z0-9-]|_[0-9a-f]{2})+", re.ASCII)
_FILES = (".nbcache", ".ipynb")
_ARTIFACT, _DOOMED = "artifact/", "doomed/"
_CONNECT_SECONDS, _SECONDS = 2.0, 20.0
_BATCH_BYTES, _BATCH_KEYS = 16 << 20, 256
_BATCH_VERSIONS = 16
_VERSIONS_BYTES = 1 << 28
_LISTINGS = 5
"""Attempts: a writer may replace versions between listing and reading."""
_ATTEMPTS = 3
GRACE_SECONDS = 3600.0
"""Seconds from a mark to the removal: longer than any writer takes."""
_AGAIN = "take the snapshot again on a machine that stores its graphs: %nbcache snapshot, or nbcache snapshot"


@dataclass(frozen=True, slots=True)
class Place:
    url: str = field(repr=False)
    """The URL of the store; it may contain a password."""
    name: str


@dataclass(frozen=True, slots=True)
class Version:
    name: str
    key: str
    received: Received | None
    problem: NbcacheError | None

    @property
    def created(self) -> float:
        return -1.0 if self.received is None else self.received.snapshot.created


@dataclass(frozen=True, slots=True)
class Collected:
    """The result of removing artifacts that no snapshot names."""

    removed: int = 0
    waiting: int = 0
    due: float | None = None
    problems: tuple[NbcacheError, ...] = ()
    """Unreadable versions: while their artifacts are unknown, nothing is removed."""


@contextmanager
def open_named(url: str, keyring: Keyring) -> Iterator[NamedSnapshots]:
    with closing(open_store(url, connect_timeout=_CONNECT_SECONDS, timeout=_SECONDS)) as store:
        yield NamedSnapshots(store, keyring)


class NamedSnapshots:
    """The named snapshots of one store. Every method raises StoreError if the store fails."""

    def __init__(self, store: Store, keyring: Keyring, *, clock: Callable[[], float] = time.time) -> None:
        self.store = store
        self.name = store.name
        self._keyring = keyring
        self._clock = clock

    def where(self, name: str) -> str:
        return f"{self.name}#{name}"

    def versions(self, name: str | None = None) -> list[Version]:
        """Return the versions of one name or of all, sorted by name and age; unreadable ones come first."""
        prefix = _SNAPSHOTS if name is None else _prefix_of(name)
        versions = [self._read_version(key, value) for key, value in self._values_below(prefix)[0].items()]
        return sorted(versions, key=lambda version: (version.name, version.created, version.key))

    def read_all(self, name: str) -> tuple[list[Received], list[NbcacheError]]:
        """Return the complete versions of a name, with their artifacts, and the errors of the others.

        Signatures are checked before artifacts are fetched, not the policy. SnapshotError without a version.
        """
        # A listing may miss a version that was replaced meanwhile, and also its replacement.
        versions = self.versions(name) or self.versions(name)
        if not versions:
            raise self._absent_error(name)
        complete: list[Received] = []
        problems = [version.problem for version in versions if version.problem is not None]
        budget = MAX_SNAPSHOT_BYTES  # for all strangers together: versions may share artifacts
        for received in filter(None, (version.received for version in versions)):
            is_trusted = is_vouched(received.standing)
            length = 0 if is_trusted else packed_bytes(received.snapshot)
            try:
                if length > budget:
                    raise UntrustedSigner(
                        f"of signers whom you do not trust, nbcache fetches at most {MAX_SNAPSHOT_BYTES:,} "
                        "bytes in all, and this version has more",
                        where=received.where,
                        next_step="nbcache ls URL shows the signers; if you know one, and trust them: "
                        "nbcache trust add SIGNER",
                    )
                budget -= length
                complete.append(self._fetch(received))
            except StoreError:
                raise
            except NbcacheError as error:
                error.of_trusted = is_trusted
                problems.append(error)
        return complete, problems

    def write(self, name: str, build: Callable[[Mapping[str, Packed]], Draft], origin: Origin) -> Taken:
        """Add the draft that `build` returns to the user's version; SnapshotError if it gets too long."""
        for _ in range(_ATTEMPTS - 1):
            with suppress(MissingArtifact, CorruptSnapshot):  # the next attempt leaves lost artifacts out
                return self._write(name, build, origin)
        return self._write(name, build, origin)

    def remove(self, name: str, *, all_signers: bool = False) -> tuple[int, int]:
        """Remove the user's versions, or those of `all_signers`; return the numbers removed and left."""
        keys = list(self.store.keys(_prefix_of(name)))
        if not keys:
            raise self._absent_error(name)
        removed = keys if all_signers else self._own_keys(name)
        if not removed:
            raise SnapshotError(
                f"nothing was removed: none of the {len(keys)} versions under this name "
                "is yours, or they are damaged",
                where=self.where(name),
                next_step="--all-signers removes other people's versions, too",
            )
        for key in removed:
            self.store.delete(key)
        return len(removed), len(keys) - len(removed)

    def _own_keys(self, name: str) -> list[str]:
        own = []
        for key, value in self._values_below(_prefix_of(name))[0].items():
            with suppress(FormatError):
                if any(is_own(version, self._keyring) for version in decode_file(value).versions):
                    own.append(key)
        return own

    # --- writing ----------------------------------------------------------------------------------

    def _write(self, name: str, build: Callable[[Mapping[str, Packed]], Draft], origin: Origin) -> Taken:
        versions = self.versions(name)
        own: dict[str, Received] = {}
        gone: set[str] = set()
        for version in versions:
            if (received := version.received) is not None and received.is_own:
                contents = received.snapshot.contents
                present = self._present(packed.packed_digest for packed in contents.values())
                lost = {digest for digest, packed in contents.items() if packed.packed_digest not in present}
                own[version.key] = without(received, lost) if lost else received
                gone |= lost
        earlier = list(own.values())
        draft, changed = merge_into_existing(earlier, build, origin, self._keyring, sign_again=bool(gone))
        if packed_bytes(draft.snapshot) > MAX_SNAPSHOT_BYTES:
            raise SnapshotError(
                f"this snapshot would be larger than the limit, {MAX_SNAPSHOT_BYTES:,} bytes",
                where=self.where(name),
                next_step="give some of its notebooks a snapshot under another name",
            )
        self._put_missing(draft, name)
        if changed:
            value = encode_file(SnapshotFile([sign(draft.snapshot, self._keyring)], {}))
            key = _prefix_of(name) + sha256(value)
            self.store.put(key, value)
            self._put_missing(draft, name)
            for absorbed in own.keys() - {key}:
                self.store.delete(absorbed)
        missing = len(gone - draft.snapshot.contents.keys())
        return Taken(self.where(name), draft, b"", changed, missing, len(versions) - len(own))

    def _put_missing(self, draft: Draft, name: str) -> None:
        """Put a snapshot's missing artifacts; MissingArtifact if the store has just lost one."""
        contents = draft.snapshot.contents
        needed = {packed.packed_digest: digest for digest, packed in contents.items()}
        for mark in self.store.present(_DOOMED + digest for digest in needed):
            self.store.delete(mark)
        gone = needed.keys() - self._present(needed)
        if any(needed[digest] not in draft.packed for digest in gone):
            raise self._missing_error(len(gone), len(needed), self.where(name))
        for packed_digest in gone:
            self.store.put(_ARTIFACT + packed_digest, draft.packed[needed[packed_digest]])

    def _present(self, packed_digests: Iterable[str]) -> set[str]:
        keys = self.store.present(_ARTIFACT + digest for digest in packed_digests)
        return {key.removeprefix(_ARTIFACT) for key in keys}

    # --- reading ----------------------------------------------------------------------------------

    def _values_below(self, prefix: str) -> tuple[dict[str, bytes], bool]:
        """Return the values below `prefix`, and whether they are complete; StoreError for too many bytes."""
        values: dict[str, bytes] = {}
        for _ in range(_LISTINGS):
            listed = set(self.store.keys(prefix))
            values = {}
            length = 0
            for key, value in read_batches(self.store, listed, _BATCH_VERSIONS):
                values[key] = value
                length += len(value)
                if length > _VERSIONS_BYTES:
                    raise StoreError(
                        f"the list of snapshots is longer than {_VERSIONS_BYTES:,} bytes",
                        where=self.store.name,
                        next_step="`nbcache rm URL#NAME --all-signers` removes one that should not be there",
                    )
            if values.keys() == listed:
                return values, True
        return values, False  # writers keep replacing versions

    def _read_version(self, key: str, value: bytes) -> Version:
        name = _name_of(key)
        try:
            _check_digest(key, value)
            if name is None:
                raise refusal("its name is not a valid name of a snapshot")
            return Version(name, key, read_manifest(value, self._keyring, where=self.where(name)), None)
        except (FormatError, BadSignature) as error:
            return Version(name or "", key, None, self._with_place(error, key))

    def _fetch(self, received: Received) -> Received:
        """Return a version with its artifacts; remove damaged ones. MissingArtifact if some are missing."""
        sizes = {packed.packed_digest: packed.packed_size for packed in received.snapshot.contents.values()}
        if sum(sizes.values()) > MAX_SNAPSHOT_BYTES or len(sizes) > MAX_ARTIFACTS:
            raise refusal("its artifacts are too many or too long", received.where)
        frames: dict[str, bytes] = {}
        damaged: list[str] = []
        for batch in _batches_by_size(sizes):
            for key, value in self.store.get_many(_ARTIFACT + digest for digest in batch).items():
                digest = key.removeprefix(_ARTIFACT)
                if sha256(value) == digest:
                    frames[digest] = value
                else:
                    damaged.append(key)
        if damaged:
            with suppress(StoreError):
                for key in damaged:
                    self.store.delete(key)
            raise CorruptSnapshot(
                f"the snapshot is refused whole: {len(damaged)} of its artifacts in the store were not what "
                "their names say, and are removed",
                where=received.where,
                next_step=_AGAIN,
            )
        if gone := len(sizes) - len(frames):
            raise self._missing_error(gone, len(sizes), received.where)
        with errors_at(received.where):
            return received.with_frames(frames)

    def _missing_error(self, gone: int, total: int, where: str) -> MissingArtifact:
        return MissingArtifact(
            f"{gone} of {total} artifacts of this snapshot are no longer in the store",
            where=where,
            next_step=_AGAIN,
        )

    def _absent_error(self, name: str) -> SnapshotError:
        return SnapshotError(
            "there is no snapshot of this name",
            where=self.where(name),
            next_step="`nbcache ls URL` lists the snapshots",
        )

    def _with_place(self, error: NbcacheError, key: str) -> NbcacheError:
        name = _name_of(key)
        error.where = self.where(name or key)
        if not isinstance(error, UnsupportedVersion):
            error.next_step = "nbcache rm --all-signers removes all versions of this name; then take it again"
        return error

    # --- garbage collection ---------------------------------------------------------------------

    def collect_garbage(self, grace: float = GRACE_SECONDS) -> Collected:
        """Mark the artifacts that no snapshot names; remove those that were marked `grace` seconds ago.

        Nothing is removed while a version is unreadable, since its artifacts are unknown. ConfigError for a
        kernel's local store, which refers to artifacts by other keys.
        """
        if next(iter(self.store.keys("ref/")), None) is not None:
            raise ConfigError(
                "this is the local store of nbcache, which removes old artifacts by itself",
                where=self.store.name,
                next_step="name the store that has the snapshots",
            )
        present = self._digests(_ARTIFACT)  # before versions, so that newer artifacts stay
        marks = self._marks(self._digests(_DOOMED))
        named, problems = self._read_names()
        if problems:
            return Collected(waiting=len(marks), problems=tuple(problems))
        started = self._clock()
        unnamed = present - named
        for digest in marks.keys() - unnamed:
            self.store.delete(_DOOMED + digest)
        for digest in unnamed:
            if marks.get(digest, started + 1) > started:  # a mark from the future is by another clock
                self.store.put(_DOOMED + digest, repr(started).encode())
        marks = {digest: min(marks.get(digest, started), started) for digest in unnamed}
        due = {digest for digest, marked in marks.items() if marked + grace <= started}
        if due:  # a writer that began before the marks missed them; its version exists now
            named, problems = self._read_names()
            if problems:
                return Collected(waiting=len(marks), problems=tuple(problems))
            marks = {digest: marked for digest, marked in marks.items() if digest not in named}
        removed = 0
        for batch in batches(sorted(due & marks.keys()), _BATCH_KEYS):
            for digest, marked in self._marks(batch).items():
                if marked + grace <= started:
                    self.store.delete(_ARTIFACT + digest)
                    self.store.delete(_DOOMED + digest)
                    del marks[digest]
                    removed += 1
        return Collected(removed, len(marks), min(marks.values()) + grace if marks else None)

    def _digests(self, prefix: str) -> set[str]:
        suffixes = (key.removeprefix(prefix) for key in self.store.keys(prefix))
        return {digest for digest in suffixes if is_sha256(digest)}

    def _marks(self, digests: Iterable[str]) -> dict[str, float]:
        """Return digest → Unix seconds of the mark; infinity if the mark is no number."""
        marks: dict[str, float] = {}
        for key, value in read_batches(self.store, map(_DOOMED.__add__, digests), _BATCH_KEYS):
            match = re.fullmatch(rb"\d{1,15}(\.\d+)?", value)
            marks[key.removeprefix(_DOOMED)] = float(value) if match else float("inf")
        return marks

    def _read_names(self) -> tuple[set[str], list[NbcacheError]]:
        """Return the artifacts that versions of any signer name, and the errors of unreadable versions."""
        values, complete = self._values_below(_SNAPSHOTS)
        named: set[str] = set()
        problems: list[NbcacheError] = []
        for key, value in values.items():
            try:
                _check_digest(key, value)
                for version in decode_file(value).versions:
                    contents = decode_snapshot(version.manifest).contents
                    named.update(packed.packed_digest for packed in contents.values())
            except NbcacheError as error:
                problems.append(self._with_place(error, key))
        if not complete:
            problems.append(
                SnapshotError(
                    "others wrote snapshots all the time",
                    where=self.store.name,
                    next_step="run it again",
                )
            )
        return named, problems


def _check_digest(key: str, value: bytes) -> None:
    if sha256(value) != key.rpartition("/")[2]:
        raise refusal("its manifest does not match the digest in its name")


def _batches_by_size(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    batch: list[str] = []
    length = 0
    for digest, size in sizes.items():
        if batch and (length + size > _BATCH_BYTES or len(batch) == _BATCH_KEYS):
            yield batch
            batch, length = [], 0
        batch.append(digest)
        length += size
    if batch:
        yield batch


# --- names ----------------------------------------------------------------------------------------


def place(text: str) -> Place | None:
    """Return the store and name in `URL#NAME`, None for files and web addresses; errors quote no URL."""
    url, separator, name = text.rpartition("#")
    if text.startswith(("https://", "http://")):
        return None
    if not separator:
        if "://" not in text:
            return None
        raise _bad_name("the URL of a store names no snapshot in it")
    if "://" not in url and (text.endswith(_FILES) or os.path.exists(os.path.expanduser(text))):
        return None
    if "://" in url and "@" in name and "@" not in url:  # redis://:pass#word@host/0
        raise _bad_name("an '@' follows the '#' of the URL: in a password, write %23 for '#'")
    if not name.isprintable() or not all(name.split("/")):
        raise _bad_name("the text after '#' is not a name: printable characters, in parts joined by '/'")
    if len(name) > _LONGEST or len(_encode_name(name)) > _LONGEST_PART:
        raise _bad_name(
            f"a snapshot's name is too long: {_LONGEST} characters at most, and {_LONGEST_PART} where all "
            "but a-z, 0-9 and - count three times or more"
        )
    return Place(url, name)


def _bad_name(problem: str) -> ConfigError:
    return ConfigError(
        problem,
        next_step="write the store's URL, # and a name: redis://host#team/gpt; `nbcache ls URL` lists names",
    )


def _name_of(key: str) -> str | None:
    """Return the name in a version's key; None if no writer makes such a key."""
    match key.split("/"):
        case ["snapshot", part, _] if _ENCODED.fullmatch(part):
            data = re.sub(rb"_(..)", lambda escape: bytes.fromhex(escape[1].decode()), part.encode())
            name = data.decode(errors="replace")
            return name if _encode_name(name) == part else None
    return None


def _encode_name(name: str) -> str:
    return "".join(
        character if character in _PLAIN else "".join(f"_{byte:02x}" for byte in character.encode())
        for character in name
    )


def _prefix_of(name: str) -> str:
    return f"{_SNAPSHOTS}{_encode_name(name)}/"
