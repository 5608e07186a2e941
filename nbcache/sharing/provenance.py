"""Signed statements of who compiled an artifact; a statement is stored and sent with its artifact.

docs/formats.md has the grammar (version 1, frozen). docs/snapshots.md ("Who compiled what") has the threats,
and how a statement answers each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache

from nbcache.core.canonical_json import corrupt, from_json, hex64, to_json
from nbcache.core.errors import FormatError, TrustError, UntrustedSigner
from nbcache.core.key import sha256
from nbcache.core.model import UNSIGNED, ArtifactRef, Environment, GraphSummary, Manifest, Packed, Provenance
from nbcache.core.settings import Policy
from nbcache.core.signature import Purpose, Signature
from nbcache.sharing.trust import Keyring, Standing, admit, short
from nbcache.storage.compatibility import may_be_for_cpu, scope
from nbcache.storage.encoding import ref_fields, ref_of

_FORMAT = "nbcache.statement"
_STANDING_SECONDS = 1.0
_REMEMBERED = 4096
_MOST_CHECKED = _REMEMBERED
"""Checking one takes a tenth of a millisecond; the result is cached."""
_MOST_WRONG = 16
"""Failures are not cached, so each is checked again; only an attacker has so many."""


@dataclass(frozen=True, slots=True)
class Statement:
    environment: str
    without_cpu: str
    ref: ArtifactRef
    packed: Packed
    user: str = ""
    """The maker's claim, which nobody verifies; so is `host`."""
    host: str = ""

    def encode(self) -> bytes:
        """Return the bytes that the maker signs."""
        return to_json(
            _FORMAT,
            {
                **ref_fields(self.ref, provenance=False),
                "environment": self.environment,
                "host": self.host,
                "packed": self.packed.packed_size,
                "packed_digest": self.packed.packed_digest,
                "user": self.user,
                "without_cpu": self.without_cpu,
            },
        )

    @classmethod
    def decode(cls, content: bytes) -> Statement:
        """Return the statement in `content`; raises CorruptEntry or UnsupportedVersion."""
        fields = from_json(content, _FORMAT)
        ref = replace(ref_of(fields), provenance=None)
        return cls(
            environment=hex64(fields.text("environment")),
            without_cpu=hex64(fields.text("without_cpu")),
            ref=ref,
            packed=Packed(ref.size, fields.integer("packed"), hex64(fields.text("packed_digest"))),
            user=fields.text("user"),
            host=fields.text("host"),
        )

    def sign(self, keyring: Keyring, purpose: Purpose = Purpose.ARTIFACT) -> Provenance:
        content = self.encode()
        return Provenance(content, keyring.sign(purpose, content).encode())


@lru_cache(_REMEMBERED)
def verify(provenance: Provenance) -> tuple[Statement, str]:
    """Return a statement and its signer, trusted or not; raises FormatError or BadSignature."""
    signer = Signature.signer(provenance.signature, Purpose.ARTIFACT, provenance.statement)
    return Statement.decode(provenance.statement), signer


@lru_cache(_REMEMBERED)
def _signer(signature: bytes) -> str:
    return Signature.decode(signature).fingerprint


def signed_by(provenance: Provenance) -> str:
    """Return the signer's fingerprint, empty without one; the signature is not checked again."""
    try:
        return _signer(provenance.signature)
    except (FormatError, TrustError):
        return ""


def with_makers(manifest: Manifest) -> Manifest:
    by_digest = {ref.digest: signed_by(ref.provenance) for ref in manifest.artifacts if ref.provenance}
    by_key = {ref.key: ref.digest for ref in manifest.artifacts}

    def maker_of(graph: GraphSummary) -> str:
        if graph.key in by_key:
            return by_digest.get(by_key[graph.key], "")
        return next((by_digest[digest] for digest in graph.artifacts if digest in by_digest), "")

    return replace(manifest, graphs=tuple(replace(graph, maker=maker_of(graph)) for graph in manifest.graphs))


@dataclass(frozen=True, slots=True)
class Made:
    artifacts: int
    user: str = ""
    host: str = ""


def authors(refs: Iterable[ArtifactRef]) -> list[tuple[str, Statement | None]]:
    """Return the fingerprint and the statement of the maker of each of `refs`.

    The fingerprint is empty unless a valid signature covers a statement of this artifact. After many
    signatures, or some invalid ones, the rest are not checked.
    """
    by_ref: list[tuple[str, Statement | None]] = []
    checked = wrong = 0
    for ref in refs:
        author: tuple[str, Statement | None] = ("", None)
        provenance = ref.provenance or UNSIGNED
        if provenance != UNSIGNED and checked < _MOST_CHECKED and wrong < _MOST_WRONG:
            checked += 1
            with suppress(FormatError, TrustError):
                statement, fingerprint = verify(provenance)
                author = (fingerprint, statement) if _is_of(statement, ref) else author
            wrong += author[1] is None
        by_ref.append(author)
    return by_ref


def made_by(refs: Iterable[ArtifactRef]) -> dict[str, Made]:
    """Return fingerprint → maker, most artifacts first; unsigned artifacts have an empty fingerprint."""
    makers: dict[str, Made] = {}
    for fingerprint, statement in authors(ref for ref in refs if ref.provenance is not None):
        maker = makers.get(fingerprint) or Made(0, *((statement.user, statement.host) if statement else ()))
        makers[fingerprint] = replace(maker, artifacts=maker.artifacts + 1)
    return dict(sorted(makers.items(), key=lambda item: -item[1].artifacts))


def _is_of(statement: Statement, ref: ArtifactRef) -> bool:
    return (statement.ref.identity, statement.ref.size) == (ref.identity, ref.size)


class Judge:
    """Decides whose artifacts may be used, by the current `keyring` and `policy`. Safe for any thread."""

    def __init__(self, keyring: Callable[[], Keyring], policy: Callable[[], Policy]) -> None:
        self._keyring = keyring
        self._policy = policy
        self._standings: dict[str, tuple[float, Standing]] = {}
        """Fingerprint of a signer → when its standing was looked up, and the standing."""

    @property
    def policy(self) -> Policy:
        return self._policy()

    def check(self, ref: ArtifactRef, is_bound: Callable[[Statement], bool]) -> None:
        """Raise FormatError or TrustError unless an artifact from elsewhere may be used.

        Its statement must be of this artifact, by `is_bound` for the environment, and of an admitted signer.
        """
        provenance = ref.provenance or UNSIGNED
        if provenance == UNSIGNED:
            admit(self.policy, None)
            return
        statement, fingerprint = verify(provenance)
        if not _is_of(statement, ref) or not is_bound(statement):
            raise corrupt(
                "the signature stored with an artifact was made for another artifact or environment"
            )
        self._admit(fingerprint)

    def admit_stored(self, ref: ArtifactRef) -> None:
        """Raise TrustError unless a stored artifact may be used; its statement was checked on arrival."""
        if ref.provenance is not None:
            self._admit(signed_by(ref.provenance))

    def _admit(self, fingerprint: str) -> None:
        try:
            admit(self.policy, self.standing(fingerprint) if fingerprint else None, fingerprint)
        except UntrustedSigner as error:
            raise UntrustedSigner(
                f"{short(fingerprint)}, who compiled it, is not trusted here", next_step=error.next_step
            ) from None

    def folder_suffix(self) -> str:
        """Return a suffix for torch's folder, so that torch finds no code of signers who have lost trust."""
        if self.policy is Policy.OFF:
            return "-off"
        try:
            removed = self._keyring().removal_mark()
        except TrustError:  # the keyring is unreadable, so that only this user's artifacts are used
            removed = b"?"
        return f"-{sha256(removed)[:8]}" if removed else ""

    def forget(self) -> None:
        self._standings.clear()

    def name(self, fingerprint: str) -> str:
        return self._keyring().name(fingerprint)

    def introduce(self, fingerprint: str, user: str = "", host: str = "") -> str:
        return self._keyring().introduce(fingerprint, user, host)

    def standing(self, fingerprint: str) -> Standing:
        """Return a signer's standing, by keys that were read at most a second ago."""
        moment = time.monotonic()
        cached = self._standings.get(fingerprint)
        if cached is not None and moment - cached[0] < _STANDING_SECONDS:
            return cached[1]
        standing = self._keyring().standing(fingerprint)
        self._standings[fingerprint] = (moment, standing)
        return standing


def statement_of(
    environment: Environment, ref: ArtifactRef, packed: Packed, user: str, host: str
) -> Statement:
    scope_digest, without_cpu = scope(environment, ref.type), scope(environment, ref.type, cpu=False)
    return Statement(scope_digest, without_cpu, replace(ref, provenance=None), packed, user, host)


def is_bound(statement: Statement, environment: Environment) -> bool:
    """Return whether a statement is for `environment`.

    Beside a GPU the CPU may differ: graphs do not state their device. The snapshot's signer vouches for that.
    """
    type = statement.ref.type
    if statement.environment == scope(environment, type):
        return True
    return may_be_for_cpu(type, environment) and statement.without_cpu == scope(environment, type, cpu=False)
