"""One compile for many kernels: the first to miss a graph compiles it, and the others wait for the result.

The holder of a lease signs its statement, so that users see no name written by an untrusted signer. The
statement names the lease, so that its signature is invalid for others. docs/formats.md has its grammar.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from nbcache.core.canonical_json import from_json, to_json
from nbcache.core.errors import FormatError, StoreError, TrustError
from nbcache.core.threads import ForkSafeLock, renew_in_children, start_thread
from nbcache.sharing.live.connection import Timings
from nbcache.sharing.live.signing import Signer
from nbcache.storage.backends.redis.leases import HOLDER_BYTES, Lease, RedisLeases

T = TypeVar("T")

_LONGEST_FACTOR, _LEAST_SECONDS = 3.0, 60.0
"""A lease is extended for so many times the expected seconds, and at least for so many seconds."""
_MOST_FRUITLESS = 2
"""After so many kernels have released a lease without a result, a kernel stops waiting."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.5
_FORMAT = "nbcache.holder"


@dataclass(frozen=True, slots=True)
class Holder:
    user: str
    host: str
    since: float
    signer: str = ""

    def encode(self, name: str, signer: Signer) -> bytes:
        """Return the signed statement that this is the holder of the lease `name`; unsigned if that fails."""
        fields = {"host": self.host, "name": name, "since": self.since, "user": self.user}
        statement = signature = b""
        with suppress(FormatError, TrustError):
            statement = to_json(_FORMAT, fields)
            signature = signer.sign(statement)
        return json.dumps({"said": statement.decode(), "signature": signature.decode()}).encode()

    @classmethod
    def decode(cls, data: bytes, name: str, signer: Signer) -> Holder:
        """Return the holder of the lease `name` in the statement `data`; empty without a trusted signer."""
        try:
            match json.loads(data) if len(data) <= HOLDER_BYTES else None:
                case {"said": str(statement), "signature": str(signature)} if trusted := signer.signer_of(
                    statement.encode(), signature.encode()
                ):
                    fields = from_json(statement.encode(), _FORMAT)
                    if fields.text("name") == name:
                        since = fields.seconds("since")
                        return cls(fields.text("user"), fields.text("host"), since, trusted)
        except (FormatError, RecursionError, TrustError, ValueError):
            pass
        return cls("", "", time.time())


class SingleFlight:
    """The leases of one kernel on graphs to compile. Methods raise StoreError if the store fails."""

    def __init__(self, leases: RedisLeases, signer: Signer, timings: Timings) -> None:
        self._leases = leases
        self._signer = signer
        self._timings = timings
        self._lock = ForkSafeLock()
        self._flights: dict[str, tuple[Lease, float]] = {}
        """Name → a lease, and the time (`time.monotonic`) up to which it is extended."""
        self._extender: threading.Thread | None = None
        self._closed = threading.Event()
        renew_in_children(self)

    def renew(self) -> None:
        self._flights = {}
        self._extender = None
        self._closed = threading.Event()

    def wait(
        self,
        name: str,
        fetch: Callable[[], T | None],
        expected: float,
        on_wait: Callable[[Holder | None], None],
        patience: float | None = None,
    ) -> T | None:
        """Return the result of `fetch` once another kernel has compiled `name`; None to compile it here.

        The wait ends after `expected` or `patience` seconds. `on_wait` is called with the other kernel, and
        with None at the end. A caller that gets None compiles and then calls `done`.
        """
        signer = self._signer
        with self._lock:
            if name in self._flights:  # torch looks it up again, since it could not use the loaded one
                return None
        deadline = time.monotonic() + (expected if patience is None else min(expected, patience))
        pause = _FIRST_PAUSE
        waited = False
        last_data: bytes | None = None
        holder: Holder | None = None
        fruitless = 0
        try:
            while True:
                own_data = Holder(signer.user, signer.host, time.time()).encode(name, signer)
                claim = self._leases.claim(name, own_data, self._timings.lease)
                if claim.lease is not None:
                    self._keep_extended(claim.lease, expected)
                holder_data = own_data if claim.lease is not None else claim.holder
                if holder_data != last_data:  # otherwise `holder` is up to date
                    fruitless += last_data is not None
                    holder = None if holder_data is None else Holder.decode(holder_data, name, signer)
                last_data = holder_data
                # After the claim, so that entries published before the release are seen.
                if (result := fetch()) is not None or fruitless == _MOST_FRUITLESS:
                    self.done(name)
                    return result
                if claim.lease is not None or time.monotonic() >= deadline:
                    return None
                on_wait(holder)
                waited = True
                if self._closed.wait(max(0.0, min(pause, deadline - time.monotonic()))):
                    return None
                pause = min(1.5 * pause, _LONGEST_PAUSE)
        except StoreError:
            self.forget(name)  # a release would wait for the failing store once more
            raise
        except BaseException:  # an interrupt
            with suppress(StoreError):
                self.done(name)
            raise
        finally:
            if waited:
                on_wait(None)

    def done(self, name: str) -> None:
        """Let other kernels continue: `name` is published, or was not compiled."""
        if (lease := self.forget(name)) is not None:
            self._leases.release(lease)

    def forget(self, name: str) -> Lease | None:
        """Stop extending the lease on `name`, so that it expires."""
        with self._lock:
            lease, _ = self._flights.pop(name, (None, 0.0))
        return lease

    def close(self, *, release: bool = True) -> None:
        """Stop waiting; release the leases, or without `release` let them expire."""
        self._closed.set()
        with suppress(StoreError):  # unreleased leases expire
            for name in list(self._flights) if release else ():
                self.done(name)

    def _keep_extended(self, lease: Lease, expected: float) -> None:
        until = time.monotonic() + max(_LEAST_SECONDS, _LONGEST_FACTOR * expected)
        with self._lock:
            self._flights[lease.name] = lease, until
            if self._extender is None or not self._extender.is_alive():
                self._extender = start_thread(self._extend, "lease")  # without a thread the lease just ends

    def _extend(self) -> None:
        while not self._closed.wait(self._timings.heartbeat):
            moment = time.monotonic()
            with self._lock:
                alive = [lease for lease, until in self._flights.values() if until > moment]
                if not alive:
                    self._extender = None
                    return
            for lease in alive:
                with suppress(StoreError):
                    self._leases.extend(lease, self._timings.lease)
