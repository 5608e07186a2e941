"""One kernel among those that share a store: how it signs, and whom it believes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from nbcache.errors import CorruptEntry
from nbcache.format import is_bomb, unpack
from nbcache.key import sha256
from nbcache.model import ArtifactRef, Packed
from nbcache.shared_format import Statement, Variant
from nbcache.trust import Keyring, Policy, Signature, Standing, admit

__all__ = ["Found", "Peer"]


@dataclass(frozen=True, slots=True)
class Found:
    """An artifact of the shared level, checked and admitted, and not unpacked yet."""

    statement: Statement
    signer: str
    """Fingerprint."""
    standing: Standing
    packed: bytes = field(repr=False)

    def unpack(self) -> bytes:
        """Return the content; CorruptEntry where it is another than was signed."""
        ref = self.statement.ref
        return unpack(self.packed, size=ref.size, digest=ref.digest)


@dataclass(frozen=True, slots=True)
class Peer:
    """Who does the work of a kernel. Methods raise TrustError where its keys cannot be used."""

    keyring: Callable[[], Keyring]
    policy: Callable[[], Policy]
    user: str = ""
    host: str = ""

    def fingerprint(self) -> str:
        """Return the fingerprint of the key that signs, which is made at the first use."""
        return self.keyring().sign(b"").fingerprint

    def signed(self, environment: str, ref: ArtifactRef, packed: bytes) -> Variant:
        """Return an artifact with the signed statement of what it is; `environment` is a digest."""
        held = Packed(ref.size, len(packed), sha256(packed))
        said = Statement(environment, ref, held, self.user, self.host).encode()
        return Variant(said, self.keyring().sign(said).encode(), packed)

    def checked(self, variant: Variant) -> Found:
        """Return a variant whose lengths, digest and signature are right, and whose signer may be believed.

        Raises FormatError, BadSignature, or another TrustError: of what the policy forbids.
        """
        statement = Statement.decode(variant.statement)
        packed = statement.packed
        if len(variant.packed) != packed.packed_size or is_bomb(packed.size, packed.packed_size):
            raise CorruptEntry("it is not as long as its statement says, or would be much longer")
        if sha256(variant.packed) != packed.packed_digest:
            raise CorruptEntry("it does not have the digest that its statement says")
        signature = Signature.decode(variant.signature)
        signature.verify(variant.statement)
        standing = self.keyring().standing(signature.fingerprint)
        admit(self.policy(), standing, signature.fingerprint)
        return Found(statement, signature.fingerprint, standing, variant.packed)
