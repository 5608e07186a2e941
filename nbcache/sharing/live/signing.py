"""One kernel among those that share a store: how it signs, and whom it believes."""

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
from nbcache.sharing.provenance import Statement, statement_of, verified
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
        """Return the content; CorruptEntry where it is another than was signed."""
        ref = self.statement.ref
        return unpack(self.packed, size=ref.size, digest=ref.digest)


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs what a kernel publishes, and says what to believe of others; TrustError if keys are unusable."""

    keyring: Callable[[], Keyring]
    policy: Callable[[], Policy]
    user: str = ""
    host: str = ""

    def introduce(self, fingerprint: str, user: str, host: str) -> str:
        """Return what the user calls a signer and what the signer states; `another kernel` without one."""
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
        """Return an artifact with its maker's signed statement; the user's, if it was compiled here.

        None for others' work that cannot be passed on as theirs: it is unsigned, depends on something that
        `environment` lacks, or is here in another frame than theirs.
        """
        held = _frame_of(ref, packed)
        if ref.provenance is None:
            said = statement_of(environment, ref, held, self.user, self.host).signed(self.keyring())
            return Variant(said.statement, said.signature, packed)
        try:
            statement, _ = verified(ref.provenance)
        except (FormatError, TrustError):
            return None
        wanted = (ref.identity, held, scope(environment, ref.type))
        if (statement.ref.identity, statement.packed, statement.environment) != wanted:
            return None
        return Variant(ref.provenance.statement, ref.provenance.signature, packed)

    def publication(self, environment: str, ref: ArtifactRef, packed: bytes) -> Variant:
        statement = Statement(environment, environment, ref, _frame_of(ref, packed), self.user, self.host)
        said = statement.signed(self.keyring(), Purpose.PUBLICATION)
        return Variant(said.statement, said.signature, packed)

    def checked(self, variant: Variant, purpose: Purpose = Purpose.ARTIFACT) -> VerifiedEntry:
        """Return a variant whose lengths, digest and signature are right, and whose signer may be believed.

        Raises FormatError, BadSignature, or another TrustError where the policy forbids it. A statement is
        decoded after its signature is checked, and the frame, which may be long, is hashed only for an
        admitted signer.
        """
        statement, signer = _read_statement(variant, purpose)
        admit(self.policy(), self.keyring().standing(signer), signer)
        _check_digest(variant, statement)
        provenance = Provenance(variant.statement, variant.signature)
        return VerifiedEntry(statement, signer, variant.packed, provenance)

    def statement_of(self, variant: Variant) -> tuple[Statement, str] | None:
        """Return a variant's statement and its signer, trusted or not; None where it is wrong."""
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
        raise CorruptEntry("it is not as long as its statement says, or would be much longer")
    return statement, signer


def _check_digest(variant: Variant, statement: Statement) -> None:
    if sha256(variant.packed) != statement.packed.packed_digest:
        raise CorruptEntry("it does not have the digest that its statement says")


def _frame_of(ref: ArtifactRef, packed: bytes) -> Packed:
    return Packed(ref.size, len(packed), sha256(packed))
