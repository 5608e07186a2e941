"""The errors that nbcache raises: each says what went wrong, where, and what to do next.

A cache miss is no error. None of these reaches a user's cell, unless the user asked for it
(`--require-hit`, a magic with bad arguments) or trust is at stake.
"""

from __future__ import annotations

from collections.abc import Sequence

from nbcache.core.text import clean, printable


class NbcacheError(Exception):
    """Base of every error: what went wrong, where without secrets, and one next step for the user."""

    def __init__(self, what: str, *, where: str | None = None, next_step: str | None = None):
        super().__init__(what)
        self.what = what
        self.where = where
        self.next_step = next_step
        self.of_trusted = False
        """True if the user, or a trusted signer, has signed the faulty bytes."""

    def __str__(self) -> str:
        what = "\n".join(map(printable, self.what.split("\n")))
        return f"{what} ({printable(self.where)})" if self.where else what

    def with_next_step(self) -> str:
        """Return what and where, and what next, as one line of a notice."""
        return f"{self}. Next: {printable(self.next_step)}" if self.next_step else str(self)

    def diagnostics(self) -> list[str]:
        """Return the lines to show a person: what and where, then what next."""
        lines = [f"{type(self).__name__}: {self}"]
        if self.next_step:
            lines.append(f"  next: {printable(self.next_step)}")
        return lines

    def _render_traceback_(self) -> list[str]:
        return [clean(line) for line in self.diagnostics()]


class ConfigError(NbcacheError):
    """A setting has a name or a value that cannot be used."""


class StoreError(NbcacheError):
    """A store could not do what it was asked."""


class StoreUnavailable(StoreError):
    """A store cannot be reached or used at all: missing rights, foreign owner, no connection."""


class StoreReadOnly(StoreError):
    """A write was asked of a store that only reads."""


class StoreFull(StoreError):
    """A store has no room for a write."""


class FormatError(NbcacheError):
    """Bytes that nbcache read are not what its formats allow."""


class CorruptEntry(FormatError):
    """An entry's length, digest or framing is wrong."""


class CorruptSnapshot(FormatError):
    """A snapshot's archive is broken, or its parts do not belong together: nothing of it is used."""


class UnsupportedVersion(FormatError):
    """An entry, manifest or snapshot was written by a newer nbcache."""


class TrustError(NbcacheError):
    """Nobody whom the user trusts answers for an artifact, or keys cannot be read: nothing of it is used."""


class Unsigned(TrustError):
    """A snapshot has no signature."""


class BadSignature(TrustError):
    """A signature is not that of the contents that it stands beside."""


class UntrustedSigner(TrustError):
    """A snapshot was signed by someone whom the user has not named."""


class SnapshotError(NbcacheError):
    """A snapshot could not be taken or used."""


class MissingArtifact(SnapshotError):
    """Artifacts that a snapshot in a store names are gone."""


class EnvironmentMismatch(SnapshotError):
    """A snapshot holds nothing that fits this machine; `differences` says why, one line for a component."""

    def __init__(self, what: str, differences: Sequence[str], *, where: str | None = None):
        super().__init__(what, where=where, next_step="take a snapshot on a machine like this one, or here")
        self.differences = tuple(differences)

    def diagnostics(self) -> list[str]:
        first, *rest = super().diagnostics()
        return [first, *(f"  {printable(line)}" for line in self.differences), *rest]


class UnsupportedTorch(NbcacheError):
    """A private part of torch that nbcache builds on is not there in this version."""


class HitRequired(NbcacheError):
    """A cell that was run with `--require-hit` compiled something."""
