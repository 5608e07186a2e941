"""The contract of stores, a state machine, stores that fail, and a fake bridge."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from nbcache.core.model import Environment
from nbcache.kernel.events import FrameCompiled, GraphLookup, LookupStarted, SpanEnded, SpanStarted
from nbcache.kernel.prewarming import Steps
from nbcache.storage.backends.base import Store

if TYPE_CHECKING:
    from hypothesis.stateful import RuleBasedStateMachine

    from nbcache.kernel.session import Session

OPERATIONS: dict[str, Callable[[Store], object]] = {
    "get": lambda store: store.get("artifact/a"),
    "get_many": lambda store: store.get_many(["artifact/a", "artifact/b"]),
    "present": lambda store: store.present(["artifact/a", "artifact/b"]),
    "put": lambda store: store.put("artifact/a", b"one"),
    "delete": lambda store: store.delete("artifact/a"),
    "keys": lambda store: list(store.keys()),
}
"""The operations of a store that can fail, with a call of each."""

SECONDS = 20.0
"""Seconds that a busy machine may take for what needs no time."""
_LONGEST_KEY = "/".join(["p" * 102] * 4 + ["k" * 100])  # 512 characters


def at_once(actions: Iterable[Callable[[], Any]], seconds: float = SECONDS) -> list[Any]:
    """Do all of these at the same time, in so many seconds; return what they return."""
    listed = list(actions)
    results: list[Any] = [None] * len(listed)
    errors: list[BaseException] = []
    barrier = threading.Barrier(max(1, len(listed)))

    def do(number: int) -> None:
        barrier.wait(seconds)
        try:
            results[number] = listed[number]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=do, args=(number,)) for number in range(len(listed))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    assert not errors and not any(thread.is_alive() for thread in threads), errors
    return results


class StoreContract:
    """What every store does. Subclass it as `Test…` and give it a fixture `store`: an empty store.

    A store may refuse, with StoreError, a key that is also a folder of other keys (`a` beside `a/b`),
    and a part of more than 200 characters; nbcache has no such keys.
    """

    def test_it_is_a_store(self, store: Store) -> None:
        assert isinstance(store, Store)
        assert store.name
        assert not store.read_only, "the contract is for stores that can be written to"

    def test_any_bytes_come_back_as_they_were(self, store: Store) -> None:
        for number, value in enumerate([b"", b"\0", bytes(range(256)), b"\r\n", b"x" * 300_000]):
            store.put(f"artifact/{number}", value)
            assert store.get(f"artifact/{number}") == value

    def test_get_many_returns_those_that_are_there(self, store: Store) -> None:
        store.put("artifact/a", b"one")
        store.put("ref/b", b"two")
        wanted = ["ref/b", "artifact/absent", "artifact/a", "artifact/a"]
        assert store.get_many(iter(wanted)) == {"artifact/a": b"one", "ref/b": b"two"}
        assert store.get_many([]) == {}

    def test_present_tells_which_are_there(self, store: Store) -> None:
        store.put("artifact/a", b"")
        store.put("ref/x/b", b"two")
        wanted = ["ref/x/b", "artifact/absent", "artifact/a", "artifact/a", "ref", "ref/x", "ref/x/b/c"]
        assert store.present(iter(wanted)) == {"artifact/a", "ref/x/b"}
        assert store.present([]) == set()
        store.delete("artifact/a")
        assert store.present(wanted) == {"ref/x/b"}

    def test_keys_may_be_deleted_while_they_are_listed(self, store: Store) -> None:
        for number in range(20):
            store.put(f"artifact/{number}", b"one")
        for key in store.keys(""):
            store.delete(key)
        assert list(store.keys()) == []

    def test_a_key_of_every_allowed_character_and_length_is_held(self, store: Store) -> None:
        for key in ("abcdefghijklmnopqrstuvwxyz0123456789_-/-/_", "a" * 200, _LONGEST_KEY):
            store.put(key, key.encode())
            assert store.get(key) == key.encode()
            assert key in set(store.keys())

    def test_what_is_no_key_is_refused(self, store: Store) -> None:
        refused = ["", "/", "/a", "a/", "a//b", "..", "a/../b", ".hidden", "A", "a b", "a\n", "é", "a" * 513]
        calls: list[Callable[[str], object]] = [
            store.get,
            store.delete,
            lambda key: store.get_many([key]),
            lambda key: store.present([key]),
            lambda key: store.put(key, b"one"),
        ]
        for key in refused:
            for call in calls:
                with pytest.raises(ValueError, match="key"):
                    call(key)
        assert list(store.keys()) == []

    def test_threads_may_use_it_at_once(self, store: Store) -> None:
        def use(name: str) -> None:
            for number in range(20):
                mine, shared = f"thread/{name}/{number}", f"shared/{number % 3}"
                store.put(mine, mine.encode())
                store.put(shared, shared.encode() * 1000)
                assert store.get(mine) == mine.encode()
                assert store.get(shared) in (None, shared.encode() * 1000)
                assert mine in set(store.keys(f"thread/{name}/"))
                store.delete(shared)
                if number % 2:
                    store.delete(mine)

        at_once(partial(use, name) for name in "abcd")
        left = {f"thread/{name}/{number}" for name in "abcd" for number in range(0, 20, 2)}
        assert set(store.keys("thread/")) == left

    def test_close_may_be_called_twice(self, store: Store) -> None:
        store.put("artifact/a", b"one")
        store.close()
        store.close()


def store_state_machine(factory: Callable[[], Store]) -> type[RuleBasedStateMachine]:
    """Return a Hypothesis state machine that compares stores with a dictionary.

    `factory` makes an empty store for each run; it is closed at the run's end.
    """
    from hypothesis import strategies as st
    from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

    keys = st.sampled_from(["top", "artifact/a", "artifact/ab", "ref/x/a", "ref/x/b", "ref/xy/a"])
    prefixes = st.sampled_from(["", "artifact/", "ref/", "ref/x/", "absent/"])

    class StoreIsADictionary(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.store = factory()
            self.model: dict[str, bytes] = {}

        @rule(key=keys, value=st.binary(max_size=100))
        def put(self, key: str, value: bytes) -> None:
            self.store.put(key, value)
            self.model[key] = value

        @rule(key=keys)
        def delete(self, key: str) -> None:
            self.store.delete(key)
            self.model.pop(key, None)

        @rule(key=keys)
        def get(self, key: str) -> None:
            assert self.store.get(key) == self.model.get(key)

        @rule(wanted=st.lists(keys))
        def get_many(self, wanted: list[str]) -> None:
            expected = {key: self.model[key] for key in wanted if key in self.model}
            assert self.store.get_many(wanted) == expected

        @rule(wanted=st.lists(keys))
        def present(self, wanted: list[str]) -> None:
            assert self.store.present(wanted) == self.model.keys() & set(wanted)

        @rule(prefix=prefixes)
        def list_prefix(self, prefix: str) -> None:
            assert sorted(self.store.keys(prefix)) == sorted(k for k in self.model if k.startswith(prefix))

        @invariant()
        def keys_are_equal(self) -> None:
            assert sorted(self.store.keys()) == sorted(self.model)

        def teardown(self) -> None:
            self.store.close()

    return StoreIsADictionary


class FailingStore:
    """A store whose `operations` raise `error`; both may be changed while it is in use.

    With `error` None it does what `store` does. `calls` counts its operations, failed or not.
    """

    def __init__(self, store: Store, error: Exception | None, operations: Collection[str] = OPERATIONS):
        self.store = store
        self.name = store.name
        self.error = error
        self.operations = operations
        self.calls = dict.fromkeys(OPERATIONS, 0)

    @property
    def read_only(self) -> bool:
        return self.store.read_only

    def get(self, key: str) -> bytes | None:
        self._meet("get")
        return self.store.get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        self._meet("get_many")
        return self.store.get_many(keys)

    def present(self, keys: Iterable[str]) -> set[str]:
        self._meet("present")
        return self.store.present(keys)

    def put(self, key: str, value: bytes) -> None:
        self._meet("put")
        self.store.put(key, value)

    def delete(self, key: str) -> None:
        self._meet("delete")
        self.store.delete(key)

    def keys(self, prefix: str = "") -> Iterator[str]:
        self._meet("keys")
        return self.store.keys(prefix)

    def close(self) -> None:
        self.store.close()

    def _meet(self, operation: str) -> None:
        self.calls[operation] += 1
        if self.error is not None and operation in self.operations:
            raise self.error


def flip_last_byte(value: bytes) -> bytes:
    """Return `value` with its last byte changed, as a bad disk does."""
    return value[:-1] + bytes([value[-1] ^ 0xFF]) if value else b"\xff"


def truncate(value: bytes) -> bytes:
    """Return the first half of `value`, as a write that was cut short leaves."""
    return value[: len(value) // 2]


class FakeBridge:
    """A compiler without torch: its graphs are bytes, and its cache folder is a dictionary."""

    def __init__(self, environment: Environment):
        self.environment = environment
        self.size = 1000
        """Bytes of what it compiles; they do not compress."""
        self.folder: dict[str, bytes] = {}
        self.compiling: Callable[[str], object] = lambda key: None
        """Called with the key of each graph that it makes; may take time, and raise."""
        self._session: Session | None = None
        self._compiles = 0

    def install(self, session: Session) -> None:
        self._session = session
        session.cache.set_environment(self.environment)

    def uninstall(self) -> None:
        self._session = None

    def configure(self) -> None:
        """Follow no settings."""

    def clear(self) -> None:
        self.folder.clear()

    def disown(self) -> None:
        """Note nothing: what it hits never counts as made."""

    def prewarm(self) -> Steps:
        """Return nothing to be done ahead."""
        return iter(())

    def compile(self, key: str, function: str = "f") -> bytes:
        """Return the compiled graph `key` of `function`: from the folder, from the session, or made now."""
        session = self._session
        if session is None:
            raise RuntimeError("the bridge is not installed")
        compile_id = f"{self._compiles}/0"
        self._compiles += 1

        def at() -> dict[str, Any]:
            return {"time": time.perf_counter(), "thread": threading.get_ident(), "compile_id": compile_id}

        session.emit(SpanStarted(**at(), name="dynamo", function=function))
        try:
            session.emit(SpanStarted(**at(), name="inductor_compile"))
            done = {}
            try:
                hit = self._look_up(session, key, at)
                session.cache.record("inductor", key, self.folder[key], made=not hit)
                done = {"cache_state": "hit" if hit else "miss"}
            finally:
                session.emit(SpanEnded(**at(), name="inductor_compile", attributes=done))
            session.emit(FrameCompiled(**at(), function=function, location="fake.py:1", operators=1))
        finally:
            session.emit(SpanEnded(**at(), name="dynamo"))
        return self.folder[key]

    def _look_up(self, session: Session, key: str, at: Callable[[], dict[str, Any]]) -> bool:
        """Have a graph in the folder; return whether it was there, or the session had it."""
        session.emit(LookupStarted(**at(), key=key, backward=False))
        if key not in self.folder:
            for artifact in (session.find("inductor", key) or session.wait_for_other_kernel(key))[:1]:
                self.folder[key] = artifact.content
                session.cache.mark_restored("inductor", key)
        hit = key in self.folder
        if not hit:
            self.compiling(key)
            self.folder[key] = hashlib.shake_128(key.encode()).digest(self.size)
        level, source = session.cache.origin_of("inductor", key) if hit else (None, None)
        reason = None if hit else session.miss_reason(key).text
        session.emit(
            GraphLookup(**at(), key=key, backward=False, hit=hit, reason=reason, level=level, source=source)
        )
        return hit
