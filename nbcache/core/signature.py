"""Ed25519 signatures over exact bytes, each for one purpose.

A signature is over `message(purpose, content)`, each part after its length, so that
nothing signed for another purpose, and no part of something longer, can be passed off as it::

    message = length ":" purpose length ":" content     ; lengths in bytes, decimal
    purpose = "nbcache snapshot 2"                      ; a snapshot's manifest: who took it
            / "nbcache artifact 2"                      ; an artifact's statement: who compiled it
            / "nbcache publication 2"                   ; the same, of what a kernel has of a notebook
            / "nbcache lease 2"                         ; what a lease says of the kernel that compiles

A signature beside what it signs is JSON (version 2, frozen), keys sorted, no white space::

    {"algorithm": "ed25519", "format": "nbcache.signature", "public_key": 64 hexadecimal digits,
     "signature": 128 hexadecimal digits, "version": 2}
"""

from __future__ import annotations

import enum
import json
import re
from dataclasses import dataclass

from nbcache.core.canonical_json import newer_version
from nbcache.core.errors import BadSignature
from nbcache.core.key import is_sha256, sha256

_ALGORITHM, _FORMAT, _VERSION = "ed25519", "nbcache.signature", 2
_MAX_SIGNATURE_BYTES = 4096


class Purpose(enum.Enum):
    """The purpose of a signature; one that was made for another purpose is wrong."""

    SNAPSHOT = b"nbcache snapshot 2"
    ARTIFACT = b"nbcache artifact 2"
    PUBLICATION = b"nbcache publication 2"
    LEASE = b"nbcache lease 2"


@dataclass(frozen=True, slots=True)
class Signature:
    """An Ed25519 signature (RFC 8032) and the public key that checks it."""

    public_key: bytes
    signature: bytes

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the public key, 64 hexadecimal digits."""
        return sha256(self.public_key)

    def encode(self) -> bytes:
        fields = {
            "algorithm": _ALGORITHM,
            "format": _FORMAT,
            "public_key": self.public_key.hex(),
            "signature": self.signature.hex(),
            "version": _VERSION,
        }
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Signature:
        """Return the signature that `data` holds; raises BadSignature or UnsupportedVersion."""
        try:
            fields = json.loads(data) if len(data) < _MAX_SIGNATURE_BYTES else None
        except (ValueError, RecursionError):
            fields = None
        match fields:
            case {"format": "nbcache.signature", "version": int(version)} if version > _VERSION:
                raise newer_version("signature", version)
            case {
                "algorithm": "ed25519",
                "format": "nbcache.signature",
                "public_key": str(public_key),
                "signature": str(signature),
                "version": 2,
            } if is_sha256(public_key) and re.fullmatch("[0-9a-f]{128}", signature):
                return cls(bytes.fromhex(public_key), bytes.fromhex(signature))
        raise BadSignature("its signature cannot be read", next_step="ask its author for the file again")

    @classmethod
    def signer(cls, data: bytes, purpose: Purpose, content: bytes) -> str:
        """Return the fingerprint of the signer of `content`; raises BadSignature or UnsupportedVersion."""
        signature = cls.decode(data)
        signature.verify(purpose, content)
        return signature.fingerprint

    def verify(self, purpose: Purpose, content: bytes) -> None:
        """Raise BadSignature unless this is the signature of exactly `content`, made for this purpose."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            key = Ed25519PublicKey.from_public_bytes(self.public_key)
            key.verify(self.signature, message(purpose, content))
        except (InvalidSignature, ValueError):
            raise BadSignature(
                "the signature does not match the contents: they were changed after signing",
                next_step="ask its author for the file again, over another channel",
            ) from None


def message(purpose: Purpose, content: bytes) -> bytes:
    return b"".join(b"%d:%b" % (len(part), part) for part in (purpose.value, content))
