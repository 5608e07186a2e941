"""The errors that nbcache raises. Each says what went wrong, where, and what to do next.

A cache miss is no error. An error reaches a user's cell only if the user asked for it (`--require-hit`, a
magic with bad arguments) or trust is at stake.
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
        """Return what, where and what next, as one line of a notice."""
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
    """A store could not carry out an operation."""


class StoreUnavailable(StoreError):
    """A store cannot be used: missing rights, another owner, or no connection."""


class StoreReadOnly(StoreError):
    """A write to a read-only store."""


class StoreFull(StoreError):
    """A store has no room for a write."""


class FormatError(NbcacheError):
    """Bytes that nbcache read do not match their format."""


class CorruptEntry(FormatError):
    """An entry's length, digest or framing is wrong."""


class CorruptSnapshot(FormatError):
    """A snapshot's archive is damaged or its parts do not match; nothing of it is used."""


class UnsupportedVersion(FormatError):
    """An entry, manifest or snapshot was written by a newer nbcache."""


class TrustError(NbcacheError):
    """No trusted signer has signed an artifact, or keys cannot be read; nothing of it is used."""


class Unsigned(TrustError):
    """A snapshot has no signature."""


class BadSignature(TrustError):
    """A signature does not match its contents."""


class UntrustedSigner(TrustError):
    """An untrusted signer has signed a snapshot."""


class SnapshotError(NbcacheError):
    """A snapshot could not be written or used."""


class MissingArtifact(SnapshotError):
    """A store no longer holds artifacts that a snapshot in it names."""


class EnvironmentMismatch(SnapshotError):
    """A snapshot has no part for this environment; `differences` has a line for each component."""

    def __init__(self, what: str, differences: Sequence[str], *, where: str | None = None):
        super().__init__(what, where=where, next_step="take a snapshot on a machine like this one, or here")
        self.differences = tuple(differences)

    def diagnostics(self) -> list[str]:
        first, *more = super().diagnostics()
        return [first, *(f"  {printable(line)}" for line in self.differences), *more]


class UnsupportedTorch(NbcacheError):
    """torch lacks a private API that nbcache needs."""


class HitRequired(NbcacheError):
    """A cell with `--require-hit` compiled a graph."""
