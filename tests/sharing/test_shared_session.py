"""Whole sessions that share what they compile by one real Redis: hits, trust, and what is said."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nbcache.core import key as keys_of
from nbcache.core.key import components, sha256
from nbcache.core.model import Artifact, Environment, Level
from nbcache.core.settings import Policy, Settings
from nbcache.core.signature import Purpose
from nbcache.kernel import shared_client as client_module
from nbcache.sharing.live import layout as shared_keys
from nbcache.sharing.live.layout import MAX_VARIANTS, Variant, decode_shared, encode_shared, slot_of
from nbcache.sharing.provenance import Statement
from nbcache.sharing.trust import Keyring, spelled
from nbcache.storage.backends.directory import DirectoryStore
from nbcache.storage.backends.open import open_shared
from nbcache.storage.backends.redis.store import RedisStore
from nbcache.storage.encoding import pack
from nbcache.storage.types import FAILED
from support.live_kernels import ELSEWHERE, HERE, HIT, MISS, SECONDS, Kernel, at_once, kernels
from support.redis_servers import HOST, RedisServer, wait_until

Make = Callable[..., Kernel]


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Make]:
    patient = {"shared_timeout": SECONDS, "shared_connect_timeout": SECONDS}  # nothing fails here
    with kernels(tmp_path) as make:
        yield lambda *args, **options: make(*args, **{**patient, **options})


def stored(server: RedisServer, key: str, type: str = "inductor") -> list[Variant]:
    value = RedisStore(server.url).get(slot_of(HERE, type, key))
    return [] if value is None else decode_shared(value)


def put(server: RedisServer, key: str, variants: list[Variant]) -> None:
    RedisStore(server.url).put(slot_of(HERE, "inductor", key), encode_shared(variants))


# --- what is shared -------------------------------------------------------------------------------


def test_what_one_kernel_compiled_another_hits_at_l3_and_then_has_itself(
    redis_server: RedisServer, kernel: Make
) -> None:
    kernel(redis_server.url).publish("one", "two")
    other = kernel(redis_server.url, notebook="another.ipynb")

    assert other.run("one", "two", "three") == [HIT, HIT, MISS]
    assert other.levels == [Level.L3, Level.L3, None]
    assert other.session.graphs[0].source == f"redis://{HOST}:{redis_server.port}/0"
    assert other.session.notices == []
    assert other.session.flush(SECONDS)
    other.session.close()

    again = kernel("", store=other.store, notebook="another.ipynb")
    assert again.run("one", "two", "three") == [HIT, HIT, HIT]
    assert again.levels == [Level.L1] * 3
    manifest = again.session.cache.manifest()
    assert manifest is not None and {ref.key for ref in manifest.artifacts} == {"one", "two", "three"}


def test_what_was_just_compiled_is_published_without_being_read_again(
    redis_server: RedisServer, kernel: Make, tmp_path: Path
) -> None:
    class Watched(DirectoryStore):
        """Notes which artifacts are read."""

        def get(self, key: str) -> bytes | None:
            if key.startswith("artifact/"):
                read.append(key)
            return super().get(key)

    read: list[str] = []
    kernel(redis_server.url, store=Watched(tmp_path / "store")).publish("one", "two")

    assert len(stored(redis_server, "one")) == len(stored(redis_server, "two")) == 1
    assert read == []


def test_a_notebook_is_read_ahead_and_what_is_here_is_published_on_connecting(
    redis_server: RedisServer, kernel: Make
) -> None:
    early = kernel("")
    early.run("one")
    early.session.flush(SECONDS)
    late = kernel(redis_server.url, store=early.store)
    assert late.session.flush(SECONDS)
    assert len(stored(redis_server, "one")) == 1

    reader = kernel(redis_server.url)
    with redis_server.client() as client:
        client.flushall()
    assert reader.run("one") == [HIT]
    assert reader.levels == [Level.L3]
    reader.session.close()
    assert kernel("", store=reader.store).run("one") == [HIT]


def test_without_prefetch_nothing_is_read_ahead(redis_server: RedisServer, kernel: Make) -> None:
    kernel(redis_server.url).publish("one")
    reader = kernel(redis_server.url, prefetch=False)

    assert reader.session.cache._prefetcher._brought == []
    assert reader.run("one") == [HIT]


def test_what_is_here_is_published_for_the_environment_that_it_was_made_in(
    redis_server: RedisServer, kernel: Make
) -> None:
    early = kernel("", environment=ELSEWHERE)
    early.run("one")
    assert early.session.flush(SECONDS)
    late = kernel(redis_server.url, store=early.store, environment=ELSEWHERE)
    shared_client = late.session.shared_client
    assert shared_client is not None
    shared_client.begin(HERE)  # as a thread does that began before the environment changed

    assert late.session.flush(SECONDS)
    assert stored(redis_server, "one") == []


def test_reading_ahead_is_bounded_in_all(
    redis_server: RedisServer, kernel: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_MOST_AHEAD", 3000)  # a graph and its statement have 2,000 bytes
    monkeypatch.setattr("nbcache.sharing.live.connection._BATCH", 1)
    kernel(redis_server.url).publish(*(f"graph {number}" for number in range(4)))
    reader = kernel(redis_server.url)

    assert len(reader.session.cache._prefetcher._packed) == 2
    assert reader.run(*(f"graph {number}" for number in range(4))) == [HIT] * 4


def test_of_many_strangers_a_few_are_named(redis_server: RedisServer, kernel: Make) -> None:
    for number in range(5):
        kernel(redis_server.url, f"stranger {number}").publish("one")
    ada = kernel(redis_server.url, "ada")

    assert ada.run("one") == [MISS]
    named = [notice for notice in ada.session.notices if "nbcache trust add" in notice]
    assert (len(named), len(ada.session.notices)) == (3, 4)


def test_beside_a_gpu_no_graph_crosses_cpus(redis_server: RedisServer, kernel: Make) -> None:
    """It may be for the CPU there, too, of which torch's key says nothing."""
    values = {"torch.version": "2.13.0", "device": "NVIDIA H200"}
    here, there = (
        Environment(components({**values, "cpu.features": each})) for each in ("avx2", "avx2 avx512f")
    )
    kernel(redis_server.url, environment=here).publish("one")

    assert kernel(redis_server.url, environment=there).run("one") == [MISS]


def test_that_something_failed_here_is_nobody_elses(redis_server: RedisServer, kernel: Make) -> None:
    """The reason may pass, as where memory was short; and nobody would try it again."""
    ada = kernel(redis_server.url)
    ada.session.cache.record(FAILED, "a sample", b"1", made=True)
    ada.run("one")
    assert ada.session.flush(SECONDS)

    assert len(ada.session.find(FAILED, "a sample")) == 1
    assert stored(redis_server, "a sample", FAILED) == []


def test_a_cell_that_is_not_saved_shares_nothing_and_has_nobody_wait(
    redis_server: RedisServer, kernel: Make
) -> None:
    ada = kernel(redis_server.url, save=False)
    assert ada.run("one") == [MISS]
    assert ada.session.flush(SECONDS)
    assert stored(redis_server, "one") == []
    with redis_server.client() as client:
        assert client.keys("*:lock:*") == []


def test_what_was_read_from_elsewhere_claims_no_time_to_come(redis_server: RedisServer, kernel: Make) -> None:
    ada = kernel(redis_server.url)
    ref = ada.session.artifacts.put(HERE.digest, Artifact("inductor", "one", b"a graph"))
    ada.shared.publish(HERE, replace(ref, used=ref.used + 1e6), pack(b"a graph"))
    assert ada.session.flush(SECONDS)
    bob = kernel(redis_server.url, notebook="another.ipynb")
    assert bob.run("one") == [HIT]
    assert bob.session.flush(SECONDS)

    manifest = bob.session.cache.stored_manifest()
    assert manifest is not None
    assert max(each.used for each in manifest.artifacts) <= time.time()


# --- variants -------------------------------------------------------------------------------------


def record(one: Kernel, type: str, key: str, *contents: bytes) -> None:
    for content in contents:
        one.session.cache.record(type, key, content, made=True)
        assert one.session.flush(SECONDS)


def test_variants_for_other_guards_stand_side_by_side_and_the_newest_are_kept(
    redis_server: RedisServer, kernel: Make
) -> None:
    contents = [b"variant %d" % number for number in range(MAX_VARIANTS + 2)]
    record(kernel(redis_server.url), "inductor", "one", *contents[:5])
    record(kernel(redis_server.url), "inductor", "one", *contents[5:])
    reader = kernel(redis_server.url, prefetch=False)

    found = reader.session.find("inductor", "one")
    assert [each.content for each in found] == contents[:1:-1]


def test_where_the_variants_that_are_there_do_not_fit_one_kernel_compiles_for_all(
    redis_server: RedisServer, kernel: Make
) -> None:
    record(kernel(redis_server.url), "inductor", "one", b"other guards")
    first, second = (kernel(redis_server.url, prefetch=False) for _ in range(2))
    tried = [each.content for each in first.session.find("inductor", "one")]
    assert tried == [b"other guards"]
    assert not first.session.wait_for_other_kernel("one", tried)

    def compile() -> None:
        wait_until(
            lambda: second.session.shared_client and second.session.shared_client.level.holder, "it waits"
        )
        record(first, "inductor", "one", b"these guards")

    (found, _) = at_once([lambda: second.session.wait_for_other_kernel("one", tried), compile])
    assert [each.content for each in found] == [b"these guards"]


# --- trust ----------------------------------------------------------------------------------------


def test_a_stranger_gets_misses_one_notice_and_hits_once_the_signer_is_trusted(
    redis_server: RedisServer, kernel: Make
) -> None:
    ada = kernel(redis_server.url, "ada")
    ada.publish("one", "two")
    stranger = kernel(redis_server.url, "bob", notebook="another.ipynb")

    assert stranger.run("one") == [MISS]
    fingerprint = ada.keyring.own()
    (notice,) = stranger.session.notices
    assert f"%nbcache trust add {spelled(fingerprint)}, in a terminal without %" in notice

    stranger.keyring.add(fingerprint or "")
    assert stranger.run("two") == [HIT]  # keys are read at each lookup
    friend = kernel(redis_server.url, "bob", notebook="another.ipynb")
    assert friend.run("one", "two") == [HIT, HIT]
    assert friend.session.notices == []


@pytest.mark.parametrize("other", ["stranger's", "the stranger's, another key", "forged", "garbage"])
def test_what_others_have_there_keeps_nobody_from_publishing_theirs_on_connecting(
    redis_server: RedisServer, kernel: Make, other: str
) -> None:
    """Ada has compiled it before she connects; carol trusts ada, and nobody trusts bob, who was first."""
    bob = kernel(redis_server.url, "bob")
    bob.publish("one", "two")
    early = kernel("", "ada")
    early.run("one")
    assert early.session.flush(SECONDS)
    one, two = (f"nbcache:v1:{slot_of(HERE, 'inductor', key)}" for key in ("one", "two"))
    with redis_server.client() as client:
        if "another" in other:
            client.set(one, client.get(two))
        elif other == "forged":  # in ada's name
            hers = Keyring(early.session.settings.trust_dir).sign(Purpose.ARTIFACT, b"else").encode()
            (variant,) = decode_shared(client.get(one))
            client.set(one, encode_shared([replace(variant, signature=hers)]))
        elif other == "garbage":
            client.set(one, b"garbage")

    ada = kernel(redis_server.url, "ada", store=early.store)
    assert ada.session.flush(SECONDS)
    carol = kernel(redis_server.url, "carol", prefetch=False)
    carol.keyring.add(ada.keyring.fingerprint())
    assert carol.run("one") == [HIT]
    if other == "stranger's":
        dora = kernel(redis_server.url, "dora", prefetch=False)
        dora.keyring.add(bob.keyring.fingerprint())
        assert dora.run("one") == [HIT]


@pytest.mark.parametrize("place", ["live", "notebook"])
@pytest.mark.parametrize(
    "command",
    [("LPUSH", "x"), ("HSET", "put", "x:3"), ("SET", "x")],
)
def test_a_value_of_a_strange_kind_stops_no_other_entry(
    redis_server: RedisServer, kernel: Make, place: str, command: tuple[str, ...]
) -> None:
    first = kernel(redis_server.url, notebook="another.ipynb")
    first.publish("nothing")
    slot = slot_of(HERE, "inductor", "one")
    if place == "notebook":
        parts = {"environment": HERE.digest, "host": "engine", "signer": first.keyring.fingerprint()}
        slot = shared_keys.publications("model.ipynb") + keys_of.digest(keys_of.components(parts))
    with redis_server.client() as client:
        client.execute_command(command[0], f"nbcache:v1:{slot}", *command[1:])
    ada = kernel(redis_server.url)
    assert ada.run("one", "two") == [MISS, MISS]
    assert ada.session.flush(SECONDS)
    assert all(slot in notice for notice in ada.session.notices)
    assert bool(ada.session.notices) == (command == ("SET", "x"))  # what is no string is absent
    bob = kernel(redis_server.url, "bob")
    bob.keyring.add(ada.keyring.fingerprint())
    bob = kernel(redis_server.url, "bob")
    assert bob.run("one", "two") == [HIT, HIT]


def test_a_key_that_cannot_be_written_stops_no_other_entry(kernel: Make, tmp_path: Path) -> None:
    slot = slot_of(HERE, "inductor", "one")
    store = open_shared(replace(Settings(), shared_url=f"{tmp_path}/shared"))
    store.put(slot, b"x")
    (path,) = (path for path in (tmp_path / "shared").rglob("*") if path.is_file())
    path.unlink()
    (path / "in its place").mkdir(parents=True)
    ada = kernel(f"{tmp_path}/shared")
    assert ada.run("one", "two") == [MISS, MISS]
    assert ada.session.flush(SECONDS)
    (notice,) = ada.session.notices
    assert f"{slot} could not be written 3 times, and is not shared: " in notice
    bob = kernel(f"{tmp_path}/shared", "bob")
    bob.keyring.add(ada.keyring.fingerprint())
    bob = kernel(f"{tmp_path}/shared", "bob")
    assert bob.run("one", "two") == [MISS, HIT]


@pytest.mark.parametrize(("policy", "outcome"), [(Policy.ASK, MISS), (Policy.OFF, HIT)])
def test_the_policy_counts_for_what_is_shared(
    redis_server: RedisServer, kernel: Make, policy: Policy, outcome: object
) -> None:
    kernel(redis_server.url, "ada").publish("one")
    stranger = kernel(redis_server.url, "bob", notebook="another.ipynb", trust=policy)
    assert stranger.run("one") == [outcome]
    assert len(stranger.session.notices) == (policy is Policy.ASK)


def forged_statement(variant: Variant) -> Variant:
    statement = Statement.decode(variant.statement)
    return replace(variant, statement=replace(statement, user="mallory").encode())


def forged_payload(variant: Variant) -> Variant:
    return replace(variant, packed=variant.packed[:-1] + bytes([variant.packed[-1] ^ 1]))


def unsigned(variant: Variant) -> Variant:
    return replace(variant, signature=b"")


@pytest.mark.parametrize("forge", [forged_statement, forged_payload, unsigned])
@pytest.mark.parametrize("policy", [Policy.STRICT, Policy.OFF])
def test_what_was_changed_after_it_was_signed_is_a_miss_said_once_and_replaced(
    redis_server: RedisServer, kernel: Make, forge: Callable[[Variant], Variant], policy: Policy
) -> None:
    kernel(redis_server.url).publish("one", "two")
    for key in ("one", "two"):
        put(redis_server, key, [forge(each) for each in stored(redis_server, key)])
    reader = kernel(redis_server.url, notebook="another.ipynb", trust=policy)

    assert reader.run("one", "two") == [MISS, MISS]
    (notice,) = reader.session.notices
    assert "refused" in notice
    assert reader.session.flush(SECONDS)
    assert len(stored(redis_server, "one")) == 1
    assert kernel(redis_server.url, prefetch=False).run("one", "two") == [HIT, HIT]


def test_a_valid_entry_under_another_key_or_of_another_environment_is_refused(
    redis_server: RedisServer, kernel: Make
) -> None:
    kernel(redis_server.url).publish("one")
    kernel(redis_server.url, environment=ELSEWHERE).publish("three")
    put(redis_server, "two", stored(redis_server, "one"))
    value = RedisStore(redis_server.url).get(slot_of(ELSEWHERE, "inductor", "three"))
    assert value is not None
    RedisStore(redis_server.url).put(slot_of(HERE, "inductor", "three"), value)
    reader = kernel(redis_server.url, notebook="another.ipynb")

    assert reader.run("one", "two", "three") == [HIT, MISS, MISS]
    (notice,) = reader.session.notices
    assert "it was signed for another graph" in notice


def test_content_that_is_not_what_was_signed_is_refused(redis_server: RedisServer, kernel: Make) -> None:
    ada = kernel(redis_server.url)
    ref = ada.session.artifacts.put(HERE.digest, Artifact("inductor", "one", b"a graph"))
    lying = replace(ref, digest=sha256(b"another graph"))
    ada.shared.publish(HERE, lying, pack(b"a graph"))
    assert ada.session.flush(SECONDS)
    reader = kernel(redis_server.url, notebook="another.ipynb")

    assert reader.run("one") == [MISS]
    (notice,) = reader.session.notices
    assert "refused" in notice


SAID = "click here"


def said_by_nobody(statement: bytes) -> Variant:
    return Variant(statement, b"{}", b"")


def said_by_a_stranger(tmp_path: Path, statement: bytes) -> Variant:
    return Variant(statement, Keyring(tmp_path / "mallory").sign(Purpose.ARTIFACT, statement).encode(), b"")


@pytest.mark.parametrize("signed", [True, False])
def test_nothing_that_a_stranger_writes_is_said(
    redis_server: RedisServer, kernel: Make, tmp_path: Path, signed: bool
) -> None:
    reader = kernel(redis_server.url)
    keys = [f"graph-{number}" for number in range(40)]
    for number, key in enumerate(keys):
        statement = (
            f'{{"format": "nbcache.shared{SAID}{number}", "version": {number * 1000}, "{SAID}": "{SAID}"}}'
        )
        if number % 2:
            statement = statement.replace(f"{SAID}{number}", "")
        variant = said_by_a_stranger(tmp_path, statement.encode()) if signed else said_by_nobody(b"[]")
        put(redis_server, key, [variant])
        RedisStore(redis_server.url).put(slot_of(HERE, "pgo", key), f"NBCS {SAID}{number}".encode())
        reader.session.find("pgo", key)

    assert reader.run(*keys) == [MISS] * len(keys)
    assert 1 <= len(reader.session.notices) <= 3
    assert SAID not in "\n".join(reader.session.notices)


def test_what_a_newer_nbcache_has_written_is_left_alone(redis_server: RedisServer, kernel: Make) -> None:
    RedisStore(redis_server.url).put(slot_of(HERE, "inductor", "one"), b"NBCS\x02 what is not known yet")
    ada = kernel(redis_server.url)
    assert ada.run("one") == [MISS]
    assert ada.session.flush(SECONDS)
    assert (
        RedisStore(redis_server.url).get(slot_of(HERE, "inductor", "one"))
        == b"NBCS\x02 what is not known yet"
    )
    (notice,) = ada.session.notices
    assert "version 2" in notice


def test_keys_that_cannot_be_used_cost_hits_and_say_what_to_do(
    redis_server: RedisServer, kernel: Make, tmp_path: Path
) -> None:
    (tmp_path / "ada").mkdir(mode=0o755)
    ada = kernel(redis_server.url)
    assert ada.run("one", "two") == [MISS, MISS]
    ada.session.flush(SECONDS)
    (notice,) = ada.session.notices
    assert "chmod 700" in notice and "unexpectedly" not in notice
    assert stored(redis_server, "one") == []


def test_a_statement_too_long_to_be_read_is_not_written(redis_server: RedisServer, kernel: Make) -> None:
    ada = kernel(redis_server.url)
    ada.bridge.compile("one", function="f" * 70_000)
    assert ada.session.flush(SECONDS)
    assert stored(redis_server, "one") == []
    (notice,) = ada.session.notices
    assert "the limit is 65,536" in notice


# --- secrets --------------------------------------------------------------------------------------


def test_a_password_is_shown_nowhere(tmp_path: Path, kernel: Make) -> None:
    with RedisServer(tmp_path / "redis", password="hunter2") as server:
        url = f"redis://:hunter2@{HOST}:{server.port}/0?ttl=86400"
        ada = kernel(url)
        ada.publish("one")
        bob = kernel(url, "bob")
        report = bob.cell("one")
        server.kill()
        dead = bob.cell("two")
    session, shared = bob.session, bob.shared
    said = [
        *session.notices,
        *map(repr, (session, session.settings, shared, shared.store, session.shared_client, report, dead)),
        *map(repr, (shared.failure, session.activity(), *session.graphs)),
        json.dumps([each.to_json() for each in (report, dead)]),
        *(session.settings.text(name) for name in session.settings.names()),
        shared.name,
    ]
    assert any("is not asked" in each for each in said)
    assert not [each for each in said if "hunter" in each]
