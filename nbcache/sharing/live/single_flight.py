"""One compile for many kernels: the first to miss a graph compiles it, and the others wait for the result.

The holder of a lease signs its statement, so that nobody is shown a name that a stranger has written. The
statement names the lease, so that no signature serves for another. docs/formats.md has its grammar.
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
"""A compile that takes so many times the expected seconds, and so long, is given up: the next may begin."""
_MOST_FRUITLESS = 2
"""After so many kernels have let go of a graph without a result, nobody waits for it."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.5
_FORMAT = "nbcache.holder"


@dataclass(frozen=True, slots=True)
class Holder:
    user: str
    host: str
    since: float
    signer: str = ""

    def encode(self, name: str, signer: Signer) -> bytes:
        """Return its statement as the holder of the lease `name`; unsigned where it cannot sign."""
        fields = {"host": self.host, "name": name, "since": self.since, "user": self.user}
        said = signature = b""
        with suppress(FormatError, TrustError):
            said = to_json(_FORMAT, fields)
            signature = signer.sign(said)
        return json.dumps({"said": said.decode(), "signature": signature.decode()}).encode()

    @classmethod
    def decode(cls, data: bytes, name: str, signer: Signer) -> Holder:
        """Return the holder of the lease `name` by its statement `data`; empty without a trusted signer."""
        try:
            match json.loads(data) if len(data) <= HOLDER_BYTES else None:
                case {"said": str(said), "signature": str(signature)} if trusted := signer.signer_of(
                    said.encode(), signature.encode()
                ):
                    fields = from_json(said.encode(), _FORMAT)
                    if fields.text("name") == name:
                        since = fields.seconds("since")
                        return cls(fields.text("user"), fields.text("host"), since, trusted)
        except (FormatError, RecursionError, TrustError, ValueError):
            pass
        return cls("", "", time.time())


class SingleFlight:
    """The compiles of one kernel among those of all. Methods raise StoreError where the store fails."""

    def __init__(self, leases: RedisLeases, signer: Signer, timings: Timings) -> None:
        self._leases = leases
        self._signer = signer
        self._timings = timings
        self._lock = ForkSafeLock()
        self._flights: dict[str, tuple[Lease, float]] = {}
        """By name, a lease and the time (`time.monotonic`) up to which it is extended."""
        self._beating: threading.Thread | None = None
        self._closed = threading.Event()
        renew_in_children(self)

    def renew(self) -> None:
        self._flights = {}
        self._beating = None
        self._closed = threading.Event()

    def wait(
        self,
        name: str,
        arrived: Callable[[], T | None],
        expected: float,
        tell: Callable[[Holder | None], None],
        patience: float | None = None,
    ) -> T | None:
        """Return what `arrived` returns once another kernel has compiled `name`; None to compile it here.

        The wait ends after the `expected` seconds or `patience`. `tell` is called with the other kernel, and
        with None at the end. Whoever gets None calls `done` after compiling.
        """
        signer = self._signer
        with self._lock:
            if name in self._flights:  # torch asks again, where it could not use what it had loaded before
                return None
        deadline = time.monotonic() + (expected if patience is None else min(expected, patience))
        pause = _FIRST_PAUSE
        waited = False
        last: bytes | None = None
        other: Holder | None = None
        fruitless = 0
        try:
            while True:
                mine = Holder(signer.user, signer.host, time.time()).encode(name, signer)
                claim = self._leases.claim(name, mine, self._timings.lease)
                if claim.lease is not None:
                    self._begin(claim.lease, expected)
                at_it = mine if claim.lease is not None else claim.holder
                if at_it != last:  # else it is known already what that says
                    fruitless += last is not None
                    other = None if at_it is None else Holder.decode(at_it, name, signer)
                last = at_it
                # After the claim: what another has published before it let the lease go is seen here.
                if (found := arrived()) is not None or fruitless == _MOST_FRUITLESS:
                    self.done(name)
                    return found
                if claim.lease is not None or time.monotonic() >= deadline:
                    return None
                tell(other)
                waited = True
                if self._closed.wait(max(0.0, min(pause, deadline - time.monotonic()))):
                    return None
                pause = min(1.5 * pause, _LONGEST_PAUSE)
        except StoreError:
            self.forget(name)  # to ask a store that fails would be to wait for it once more
            raise
        except BaseException:  # an interrupt
            with suppress(StoreError):
                self.done(name)
            raise
        finally:
            if waited:
                tell(None)

    def done(self, name: str) -> None:
        """Let the others go on: `name` is published, or was not compiled."""
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
        with suppress(StoreError):  # the rest expires, too
            for name in list(self._flights) if release else ():
                self.done(name)

    def _begin(self, lease: Lease, expected: float) -> None:
        until = time.monotonic() + max(_LEAST_SECONDS, _LONGEST_FACTOR * expected)
        with self._lock:
            self._flights[lease.name] = lease, until
            if self._beating is None or not self._beating.is_alive():
                self._beating = start_thread(self._beat, "lease")  # without a thread the lease just ends

    def _beat(self) -> None:
        while not self._closed.wait(self._timings.heartbeat):
            now = time.monotonic()
            with self._lock:
                alive = [lease for lease, until in self._flights.values() if until > now]
                if not alive:
                    self._beating = None
                    return
            for lease in alive:
                with suppress(StoreError):
                    self._leases.extend(lease, self._timings.lease)
