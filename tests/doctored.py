"""Snapshots that say they are from elsewhere, signed anew, as whoever made them there would have."""

from __future__ import annotations

from dataclasses import replace

from nbcache.key import components
from nbcache.model import Environment
from nbcache.snapshot import Draft, receive, signed
from nbcache.trust import Keyring, Policy

__all__ = ["made_on"]


def made_on(device: str, data: bytes, keyring: Keyring) -> bytes:
    """Return the snapshot `data` as if all in it was made on `device`, signed by the key of `keyring`."""
    received = receive(data, keyring, where="")
    manifests = tuple(
        replace(each, environment=Environment(components({**each.environment.values, "device": device})))
        for each in received.snapshot.manifests
    )
    snapshot = replace(received.snapshot, manifests=manifests)
    return signed(Draft(snapshot, received.unlock(Policy.STRICT)), keyring)
