"""Who compiled an artifact: a statement of what it is, signed by its maker, that goes wherever it goes.

Grammar (version 1, frozen): canonical JSON (`nbcache.core.canonical_json`), signed for `Purpose.ARTIFACT`::

    statement = {*fields, "environment": hex64, "format": "nbcache.statement", "host": text, "packed": bytes,
                 "packed_digest": hex64, "user": text, "version": 1, "without_cpu": hex64}
                                         ; `fields` as in `nbcache.artifacts.encoding`

`environment` is a digest of what an artifact of this type depends on, by
`nbcache.artifacts.compatibility.scope`, and `without_cpu` of the same but the CPU. `digest` and `size` are of
the content, `packed` and `packed_digest` of the frame in which its maker passes it on. `user` and `host` are
what the maker says of themselves.

docs/snapshots.md ("Who compiled what") has the threats, and what a statement does about each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache

from nbcache.artifacts.compatibility import may_be_for_cpu, scope
from nbcache.artifacts.encoding import ref_fields, ref_of
from nbcache.core.canonical_json import corrupt, from_json, hex64, to_json
from nbcache.core.errors import FormatError, TrustError, UntrustedSigner
from nbcache.core.key import sha256
from nbcache.core.model import UNSIGNED, ArtifactRef, Environment, GraphSummary, Manifest, Packed, Provenance
from nbcache.core.signature import Purpose, Signature
from nbcache.core.trust import Keyring, Policy, Standing, admit, short

_FORMAT = "nbcache.statement"
_STANDING_SECONDS = 1.0
"""Seconds for which a signer's standing is remembered: another process may change it."""
_REMEMBERED = 4096
_MOST_CHECKED = _REMEMBERED
"""Signatures that are checked to tell who compiled what: each takes a tenth of a millisecond, once."""
_MOST_WRONG = 16
"""Wrong ones among them, which are checked anew each time; only who wants to deceive has so many."""


@dataclass(frozen=True, slots=True)
class Statement:
    """The maker's description of an artifact."""

    environment: str
    """Digest of what it depends on."""
    without_cpu: str
    """The same, without the CPU."""
    ref: ArtifactRef
    packed: Packed
    user: str = ""
    """The maker's user name, by their own account, or empty."""
    host: str = ""

    def encode(self) -> bytes:
        """Return it as canonical JSON, which is what is signed; FormatError where a field is out of range."""
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
        """Return the statement that `content` holds; raises CorruptEntry or UnsupportedVersion."""
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

    def signed(self, keyring: Keyring, purpose: Purpose = Purpose.ARTIFACT) -> Provenance:
        """Return it with the signature of the user."""
        content = self.encode()
        return Provenance(content, keyring.sign(purpose, content).encode())


@lru_cache(_REMEMBERED)
def verified(provenance: Provenance) -> tuple[Statement, str]:
    """Return a statement and its signer, trusted or not; raises FormatError or BadSignature."""
    signer = Signature.signer(provenance.signature, Purpose.ARTIFACT, provenance.statement)
    return Statement.decode(provenance.statement), signer


@lru_cache(_REMEMBERED)
def _signer(signature: bytes) -> str:
    return Signature.decode(signature).fingerprint


def signed_by(provenance: Provenance) -> str:
    """Return the fingerprint of a signer, empty without one; the signature is not checked again."""
    try:
        return _signer(provenance.signature)
    except (FormatError, TrustError):
        return ""


def with_makers(manifest: Manifest) -> Manifest:
    """Return `manifest` with the maker of each graph: of its own artifact, else of the first other one."""
    by_digest = {ref.digest: signed_by(ref.provenance) for ref in manifest.artifacts if ref.provenance}
    by_key = {ref.key: ref.digest for ref in manifest.artifacts}

    def maker_of(graph: GraphSummary) -> str:
        if graph.key in by_key:
            return by_digest.get(by_key[graph.key], "")
        return next((by_digest[digest] for digest in graph.artifacts if digest in by_digest), "")

    return replace(manifest, graphs=tuple(replace(graph, maker=maker_of(graph)) for graph in manifest.graphs))


@dataclass(frozen=True, slots=True)
class Made:
    """One person's share of some artifacts."""

    artifacts: int
    user: str = ""
    host: str = ""


def authors(refs: Iterable[ArtifactRef]) -> list[tuple[str, Statement | None]]:
    """Return for each of `refs` who compiled it, by fingerprint, with their statement of that very artifact.

    Empty for what nobody has signed: also where the statement is of something else or the signature is wrong,
    and for what was not checked, because very many are there, or many that are wrong.
    """
    found: list[tuple[str, Statement | None]] = []
    checked = wrong = 0
    for ref in refs:
        author: tuple[str, Statement | None] = ("", None)
        provenance = ref.provenance or UNSIGNED
        if provenance != UNSIGNED and checked < _MOST_CHECKED and wrong < _MOST_WRONG:
            checked += 1
            with suppress(FormatError, TrustError):
                statement, fingerprint = verified(provenance)
                author = (fingerprint, statement) if _is_of(statement, ref) else author
            wrong += author[1] is None
        found.append(author)
    return found


def made_by(refs: Iterable[ArtifactRef]) -> dict[str, Made]:
    """Return who compiled `refs`, by fingerprint, empty for what nobody has signed; most first."""
    found: dict[str, Made] = {}
    for fingerprint, said in authors(ref for ref in refs if ref.provenance is not None):
        first = Made(0) if said is None else Made(0, said.user, said.host)
        so_far = found.get(fingerprint, first)
        found[fingerprint] = replace(so_far, artifacts=so_far.artifacts + 1)
    return dict(sorted(found.items(), key=lambda each: -each[1].artifacts))


def _is_of(statement: Statement, ref: ArtifactRef) -> bool:
    """Return whether a statement is of this artifact, in whatever environment."""
    return (statement.ref.identity, statement.ref.size) == (ref.identity, ref.size)


class Judge:
    """Says whose artifacts may be used, by `keyring` and `policy` as they are now. Safe for any thread."""

    def __init__(self, keyring: Callable[[], Keyring], policy: Callable[[], Policy]) -> None:
        self._keyring = keyring
        self._policy = policy
        self._known: dict[str, tuple[float, Standing]] = {}

    def check(self, ref: ArtifactRef, is_bound: Callable[[Statement], bool]) -> None:
        """Raise FormatError or TrustError unless an artifact from elsewhere may be used.

        Its statement must be that of this artifact, signed by somebody whom the policy admits. `is_bound`
        says whether it is one for the environment that the artifact is offered for.
        """
        provenance = ref.provenance or UNSIGNED
        if provenance == UNSIGNED:
            admit(self._policy(), None)
            return
        statement, fingerprint = verified(provenance)
        if not _is_of(statement, ref) or not is_bound(statement):
            raise corrupt(
                "the statement beside an artifact is that of another one, or for another environment"
            )
        self._admit(fingerprint)

    def admit_stored(self, ref: ArtifactRef) -> None:
        """Raise TrustError unless what is stored here may be used: its statement was checked when it came."""
        if ref.provenance is not None:
            self._admit(signed_by(ref.provenance))

    def _admit(self, fingerprint: str) -> None:
        try:
            admit(self._policy(), self.standing(fingerprint) if fingerprint else None, fingerprint)
        except UntrustedSigner as error:
            raise UntrustedSigner(
                f"{short(fingerprint)}, who compiled it, is not trusted here", next_step=error.next_step
            ) from None

    def mark(self) -> str:
        """Return a mark for torch's folder: another one once a signer was removed, and with `trust=off`."""
        if self._policy() is Policy.OFF:
            return "-off"
        try:
            removed = self._keyring().removed()
        except TrustError:  # nobody else is trusted, then
            removed = b"?"
        return f"-{sha256(removed)[:8]}" if removed else ""

    def forget(self) -> None:
        """Forget who signers are: the user has trusted somebody."""
        self._known.clear()

    def name(self, fingerprint: str) -> str:
        return self._keyring().name(fingerprint)

    def introduce(self, fingerprint: str, user: str = "", host: str = "") -> str:
        return self._keyring().introduce(fingerprint, user, host)

    def standing(self, fingerprint: str) -> Standing:
        """Return who a signer is to the user, as of a second ago at most; TrustError as Keyring raises it."""
        now = time.monotonic()
        if (known := self._known.get(fingerprint)) is not None and now - known[0] < _STANDING_SECONDS:
            return known[1]
        standing = self._keyring().standing(fingerprint)
        self._known[fingerprint] = (now, standing)
        return standing


def statement_of(
    environment: Environment, ref: ArtifactRef, packed: Packed, user: str, host: str
) -> Statement:
    """Return what its maker says of an artifact that was compiled in `environment`."""
    whole, rest = scope(environment, ref.type), scope(environment, ref.type, cpu=False)
    return Statement(whole, rest, replace(ref, provenance=None), packed, user, host)


def is_bound(statement: Statement, environment: Environment) -> bool:
    """Return whether what a statement names was compiled for `environment`.

    A graph beside a GPU may be for the CPU or not, and nothing tells: who took the snapshot answers for that.
    """
    type = statement.ref.type
    if statement.environment == scope(environment, type):
        return True
    return may_be_for_cpu(type, environment) and statement.without_cpu == scope(environment, type, cpu=False)
