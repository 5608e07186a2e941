"""Signs a kernel's artifacts for a shared store, and checks the signatures of other kernels."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from nbcache.core.errors import BadSignature, CorruptEntry, FormatError, TrustError
from nbcache.core.key import sha256
from nbcache.core.model import UNSIGNED, ArtifactRef, Environment, Packed, Provenance
from nbcache.core.settings import Policy
from nbcache.core.signature import Purpose, Signature
from nbcache.sharing.live.layout import Variant
from nbcache.sharing.provenance import Statement, statement_of, verify
from nbcache.sharing.trust import Keyring, Standing, admit
from nbcache.storage.compatibility import scope
from nbcache.storage.encoding import is_bomb, unpack


@dataclass(frozen=True, slots=True)
class VerifiedEntry:
    statement: Statement
    signer: str
    packed: bytes = field(repr=False)
    provenance: Provenance = field(default=UNSIGNED, repr=False)

    @property
    def ref(self) -> ArtifactRef:
        return replace(self.statement.ref, provenance=self.provenance)

    def unpack(self) -> bytes:
        """Return the content; CorruptEntry if it is not the signed one."""
        ref = self.statement.ref
        return unpack(self.packed, size=ref.size, digest=ref.digest)


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs a kernel's artifacts, and checks those of other kernels; TrustError if keys are unusable."""

    keyring: Callable[[], Keyring]
    policy: Callable[[], Policy]
    user: str = ""
    host: str = ""

    def introduce(self, fingerprint: str, user: str, host: str) -> str:
        """Return the user's name for a signer and the signer's claims; `another kernel` without a signer."""
        with suppress(TrustError):
            if fingerprint:
                return self.keyring().introduce(fingerprint, user, host)
        return "another kernel"

    def sign(self, content: bytes) -> bytes:
        return self.keyring().sign(Purpose.LEASE, content).encode()

    def signer_of(self, content: bytes, signature: bytes) -> str:
        try:
            fingerprint = Signature.signer(signature, Purpose.LEASE, content)
        except (BadSignature, FormatError):
            return ""
        return "" if self.keyring().standing(fingerprint) is Standing.UNKNOWN else fingerprint

    def variant(self, environment: Environment, ref: ArtifactRef, packed: bytes) -> Variant | None:
        """Return an artifact with its maker's signed statement; the user signs one if it was compiled here.

        None for a foreign artifact that cannot be passed on: it is unsigned, its statement is for another
        environment, or it is stored here in another frame than its maker's.
        """
        frame = _frame_of(ref, packed)
        if ref.provenance is None:
            provenance = statement_of(environment, ref, frame, self.user, self.host).sign(self.keyring())
            return Variant(provenance.statement, provenance.signature, packed)
        try:
            statement, _ = verify(ref.provenance)
        except (FormatError, TrustError):
            return None
        wanted = (ref.identity, frame, scope(environment, ref.type))
        if (statement.ref.identity, statement.packed, statement.environment) != wanted:
            return None
        return Variant(ref.provenance.statement, ref.provenance.signature, packed)

    def publication(self, environment: str, ref: ArtifactRef, packed: bytes) -> Variant:
        statement = Statement(environment, environment, ref, _frame_of(ref, packed), self.user, self.host)
        provenance = statement.sign(self.keyring(), Purpose.PUBLICATION)
        return Variant(provenance.statement, provenance.signature, packed)

    def check(self, variant: Variant, purpose: Purpose = Purpose.ARTIFACT) -> VerifiedEntry:
        """Return a variant's entry if its lengths, digest and signature are right and its signer is admitted.

        Raises FormatError, BadSignature, or another TrustError if the policy forbids it. A statement is
        decoded after its signature is checked. The frame may be long, so it is hashed after the admission.
        """
        statement, signer = _read_statement(variant, purpose)
        admit(self.policy(), self.keyring().standing(signer), signer)
        _check_digest(variant, statement)
        provenance = Provenance(variant.statement, variant.signature)
        return VerifiedEntry(statement, signer, variant.packed, provenance)

    def statement_of(self, variant: Variant) -> tuple[Statement, str] | None:
        """Return a variant's statement and its signer, trusted or not; None if a check fails."""
        try:
            statement, signer = _read_statement(variant, Purpose.ARTIFACT)
            _check_digest(variant, statement)
        except (BadSignature, FormatError):
            return None
        return statement, signer


def _read_statement(variant: Variant, purpose: Purpose) -> tuple[Statement, str]:
    signer = Signature.signer(variant.signature, purpose, variant.statement)
    statement = Statement.decode(variant.statement)
    packed = statement.packed
    if len(variant.packed) != packed.packed_size or is_bomb(packed.size, packed.packed_size):
        raise CorruptEntry("its length differs from its statement, or its contents would be much longer")
    return statement, signer


def _check_digest(variant: Variant, statement: Statement) -> None:
    if sha256(variant.packed) != statement.packed.packed_digest:
        raise CorruptEntry("its digest differs from its statement")


def _frame_of(ref: ArtifactRef, packed: bytes) -> Packed:
    return Packed(ref.size, len(packed), sha256(packed))
