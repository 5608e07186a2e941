"""Decides which artifacts may run, by the user's Ed25519 key, the trusted signers, and the policy.

Artifacts are code. An artifact from elsewhere is used only if the user or a trusted signer has signed it
(`nbcache.core.signature`).

The folder, which only its owner may read or write::

    key                    the user's private key: PKCS #8, PEM, unencrypted
    trusted/<fingerprint>  a trusted signer: {"name": text, "added": Unix seconds}, as JSON
    removed                the last time at which trust in a signer ended: Unix seconds, as text

A fingerprint is the SHA-256 of the 32 bytes of a public key, 64 hexadecimal digits.
"""

from __future__ import annotations

import enum
import json
import os
import re
import stat
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nbcache.core.errors import ConfigError, TrustError, Unsigned, UntrustedSigner
from nbcache.core.files import write_whole
from nbcache.core.key import is_sha256, sha256
from nbcache.core.settings import Policy
from nbcache.core.signature import Purpose, Signature, message
from nbcache.core.text import one_line, printable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_KEY = "key"
_TRUSTED = "trusted"
_REMOVED = "removed"
_LONGEST_NAME = 100
_LONGEST_STATED = 40
_SHORTEST = 8
_SHOWN = 16


class Standing(enum.StrEnum):
    OWN = "you"
    TRUSTED = "trusted"
    UNKNOWN = "not trusted"


@dataclass(frozen=True, slots=True)
class TrustedSigner:
    fingerprint: str
    name: str
    added: float


def spelled(fingerprint: str) -> str:
    return "-".join(fingerprint[start : start + 4] for start in range(0, len(fingerprint), 4))


def short(fingerprint: str) -> str:
    """Return the beginning of `spelled`, long enough to distinguish signers at a glance."""
    return spelled(fingerprint[:_SHOWN])


def says(user: str, host: str) -> str:
    """Return `says user@host`, the wording for a claim of a signer that nobody has verified."""
    origin = "@".join(one_line(part, _LONGEST_STATED) for part in (user, host) if part)
    return f"says {origin}" if origin else ""


def admit(policy: Policy, standing: Standing | None, fingerprint: str = "") -> None:
    """Raise Unsigned (`standing` None) or UntrustedSigner unless `policy` lets such artifacts run."""
    if policy is Policy.OFF or standing in (Standing.OWN, Standing.TRUSTED):
        return
    if standing is None:
        raise Unsigned(
            "it is not signed, so nobody vouches for its contents",
            next_step="ask its author for one that `%nbcache snapshot` wrote: nbcache signs it",
        )
    raise UntrustedSigner(
        f"its signer {short(fingerprint)} is not trusted here",
        next_step=f"if you know the signer: %nbcache trust add {spelled(fingerprint)}, "
        "in a terminal without %",
    )


class Keyring:
    """The user's own key and the trusted signers, in a folder that only the user can enter.

    Files are created when they are first needed. Any number of processes may use the folder. Methods raise
    TrustError if the folder is unsafe or unusable.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self._clock = clock
        self._own: Ed25519PrivateKey | None = None

    def sign(self, purpose: Purpose, content: bytes) -> Signature:
        key = self._private_key()
        return Signature(key.public_key().public_bytes_raw(), key.sign(message(purpose, content)))

    def fingerprint(self) -> str:
        """Return the fingerprint of the user's key, which is created at first use."""
        return sha256(self._private_key().public_key().public_bytes_raw())

    def own(self) -> str | None:
        """Return the fingerprint of the user's key; None before its first use."""
        key = self._stored_key()
        return None if key is None else sha256(key.public_key().public_bytes_raw())

    def standing(self, fingerprint: str) -> Standing:
        if fingerprint == self.own():
            return Standing.OWN
        return Standing.TRUSTED if self._read(fingerprint) is not None else Standing.UNKNOWN

    def name(self, fingerprint: str) -> str:
        signer = self._read(fingerprint)
        return signer.name if signer is not None else ""

    def introduce(self, fingerprint: str, user: str = "", host: str = "") -> str:
        """Return the user's name for a signer, and the `user` and `host` that the signer claims."""
        if fingerprint == self.own():
            return f"you on {one_line(host, _LONGEST_STATED)}" if host else "you"
        called = self.name(fingerprint) or short(fingerprint)
        return f"{called} ({origin})" if (origin := says(user, host)) else called

    def trusted_signers(self, *, without: str = "") -> list[TrustedSigner]:
        self._check(self.folder)
        folder = self.folder / _TRUSTED
        with self._using("cannot be read", folder):
            names = os.listdir(folder) if folder.exists() else []
        signers = [self._read(name) for name in names if is_sha256(name) and name != without]
        return sorted(filter(None, signers), key=lambda signer: (signer.added, signer.fingerprint))

    def add(self, fingerprint: str, name: str = "") -> TrustedSigner:
        """Trust a signer, and rename it if `name` is given; ConfigError if another signer has that name."""
        digits = _digits(fingerprint)
        if not is_sha256(digits):
            raise ConfigError(
                f"{fingerprint!r} is no fingerprint",
                next_step="all 64 hexadecimal digits are needed; `nbcache inspect FILE` shows the signer's",
            )
        fingerprint = digits
        name = printable(name)[:_LONGEST_NAME].strip()
        namesakes = [
            signer.fingerprint
            for signer in (self.trusted_signers(without=fingerprint) if name else ())
            if _comparable(signer.name) == _comparable(name)
        ]
        if namesakes:
            raise ConfigError(
                f"another key that you trust is called {name!r}: {spelled(namesakes[0])}",
                next_step="choose another name, with --name; if their key is new, first remove the old one: "
                f"%nbcache trust remove {short(namesakes[0])}",
            )
        if not name:
            with suppress(TrustError):  # a damaged file is replaced below
                name = self.name(fingerprint)
        signer = TrustedSigner(fingerprint, name, self._clock())
        text = json.dumps({"added": signer.added, "name": name})
        self._write(self.folder / _TRUSTED / fingerprint, text.encode(), replace=True)
        return signer

    def remove(self, signer: str) -> TrustedSigner:
        removed = self.find(signer)
        with self._using("cannot be written", self.folder / _TRUSTED):
            (self.folder / _TRUSTED / removed.fingerprint).unlink(missing_ok=True)
        self._write(self.folder / _REMOVED, repr(self._clock()).encode(), replace=True)
        return removed

    def removal_mark(self) -> bytes:
        """Return bytes that change whenever trust in a signer ends; empty before the first time."""
        return self._content(self.folder / _REMOVED) or b""

    def find(self, signer: str) -> TrustedSigner:
        """Return the signer with this name or start of a fingerprint; ConfigError unless one matches."""
        trusted = self.trusted_signers()
        matches = [other for other in trusted if is_called(other.fingerprint, signer)]
        matches = matches or [other for other in trusted if other.name == signer]
        if len(matches) != 1:
            count = len(matches) or "no"
            raise ConfigError(
                f"{signer!r}: {count} trusted signers have that name or fingerprint",
                next_step="`%nbcache trust list` shows them; in a terminal without %",
            )
        return matches[0]

    def _private_key(self) -> Ed25519PrivateKey:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        while (key := self._stored_key()) is None:
            new = Ed25519PrivateKey.generate().private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            self._write(self.folder / _KEY, new, replace=False)  # another process may be first
        return key

    def _stored_key(self) -> Ed25519PrivateKey | None:
        path = self.folder / _KEY
        if self._own is not None or (pem := self._content(path)) is None:
            return self._own
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            key = load_pem_private_key(pem, password=None)
        except (ValueError, TypeError):
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise TrustError(
                "your signing key of nbcache is not an Ed25519 key in PEM format",
                where=str(path),
                next_step="restore the file from a backup. Or move it away: "
                "nbcache makes a new key, which nobody trusts yet",
            )
        self._own = key
        return key

    def _read(self, fingerprint: str) -> TrustedSigner | None:
        path = self.folder / _TRUSTED / fingerprint
        if (content := self._content(path)) is None:
            return None
        with suppress(ValueError):
            match json.loads(content):
                case {"name": str(name), "added": int() | float() as added}:
                    return TrustedSigner(fingerprint, name, float(added))
        raise TrustError(
            "the file in which nbcache keeps a signer whom you trust cannot be read",
            where=str(path),
            next_step=f"%nbcache trust add {spelled(fingerprint)}, if you still trust this signer",
        )

    def _content(self, path: Path) -> bytes | None:
        """Return the bytes of a file that nobody else can read or write; None if it does not exist."""
        self._check(path.parent)
        self._check(path)
        with self._using("cannot be read", path), suppress(FileNotFoundError):
            return path.read_bytes()
        return None

    def _write(self, path: Path, content: bytes, *, replace: bool) -> None:
        """Write a file that nobody else can ever read; without `replace`, keep an existing one."""
        with self._using("cannot be written", path):
            for folder in (self.folder, path.parent):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._check(folder)
            write_whole(path, content, mode=0o600, durable=True, replace=replace)

    def _check(self, path: Path) -> None:
        """Raise TrustError if other users may have written or can read the file or folder at `path`."""
        is_root = path == self.folder
        with self._using("cannot be read", path):
            try:
                status = path.stat(follow_symlinks=is_root)  # a link to the user's own folder is fine
            except FileNotFoundError:
                return
        has_right_type = stat.S_ISDIR if is_root or path == self.folder / _TRUSTED else stat.S_ISREG
        if not has_right_type(status.st_mode) or status.st_uid != os.geteuid():
            raise TrustError(
                "another user owns this, or it is of another kind, so nbcache uses no keys in it",
                where=str(path),
                next_step="set NBCACHE_TRUST_DIR to a folder of your own",
            )
        if status.st_mode & 0o077:
            mode = "700" if stat.S_ISDIR(status.st_mode) else "600"
            raise TrustError(
                "others can read or write this, so nbcache ignores the keys in it",
                where=str(path),
                next_step=f"if nobody has used it, chmod {mode} {path}",
            )

    @contextmanager
    def _using(self, problem: str, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TrustError(
                f"keys and trusted signers {problem}: {error.strerror or error}",
                where=str(path),
                next_step="check the folder, or set NBCACHE_TRUST_DIR to one that is yours",
            ) from error


def _comparable(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold()


def _digits(fingerprint: str) -> str:
    return re.sub(r"[\s:-]", "", fingerprint).lower()


def is_called(fingerprint: str, text: str) -> bool:
    """Return whether `text` is a fingerprint, grouped or not, or a long enough beginning of one."""
    digits = _digits(text)
    return len(digits) >= _SHORTEST and fingerprint.startswith(digits)


def is_fingerprint(text: str) -> bool:
    return is_sha256(_digits(text))
