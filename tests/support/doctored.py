"""Snapshots as their makers would have made them elsewhere, and what tests read of a file."""

from __future__ import annotations

from dataclasses import replace

from nbcache.core.key import components
from nbcache.core.model import Environment
from nbcache.core.settings import Policy
from nbcache.sharing.snapshots.build import Draft, Origin, attributed, signed
from nbcache.sharing.snapshots.verify import Received, receive
from nbcache.sharing.trust import Keyring

__all__ = ["made_on", "the_version"]


def made_on(device: str, data: bytes, keyring: Keyring) -> bytes:
    """Return the snapshot `data` as if all in it was made on `device`, signed by the key of `keyring`."""
    received = the_version(data, keyring)
    manifests = tuple(
        replace(each, environment=Environment(components({**each.environment.values, "device": device})))
        for each in received.snapshot.manifests
    )
    unsigned = tuple(
        replace(each, artifacts=tuple(replace(ref, provenance=None) for ref in each.artifacts))
        for each in manifests
    )
    snapshot = replace(received.snapshot, manifests=unsigned)
    said = Origin(snapshot.notebook, snapshot.created, snapshot.made_by, snapshot.user, snapshot.host)
    return signed(attributed(Draft(snapshot, received.unlock(Policy.STRICT)), [], said, keyring), keyring)


def the_version(data: bytes, keyring: Keyring, *, where: str = "") -> Received:
    """Return the only version that a snapshot file holds."""
    (received,) = receive(data, keyring, where=where)
    return received
