"""`%nbcache connect` and what belongs to it, in a real shell of a fresh interpreter; nothing is compiled."""

from __future__ import annotations

import json
import time

import pytest

from support.redis_servers import HOST, RedisServer, free_port
from support.shells import value_in_shell

pytestmark = pytest.mark.faults

MORE = """
import os, signal, time, nbcache
from nbcache.core.key import components
from nbcache.core.model import Environment
session = nbcache.session()
here = Environment(components({"torch.version": "2.13.0", "device": "cpu"}))
"""


@pytest.fixture
def in_shell(run_python, isolated):
    """Return a function that runs code after `SHELL` and returns what it has put into `value`."""

    def in_shell(code, **environ):
        return value_in_shell(run_python, f"{MORE}\n{code}", {**isolated, **environ})

    return in_shell


def test_what_cannot_be_connected_to_is_said_and_nothing_is_connected(in_shell):
    dead = f"redis://:hunter2@{HOST}:{free_port()}"
    lines = [
        f"connect {dead}",
        "connect",
        "connect one two",
        "connect --json",
        "connect redis://hunter2@host:port",
        "connect nothing://hunter2@host",
        "connect ada:hunter2@host/0",
        "disconnect now",
        "disconnect",
    ]
    ran, connected = in_shell(
        f"value = [[run('%nbcache ' + line) for line in {lines!r}], session.shared_client is not None]"
    )
    for each in ran[:-1]:
        assert not each["success"] and "Traceback" not in each["text"], each
    texts = [each["text"] for each in ran]
    assert "cannot be reached" in texts[0] and "next: check that the server runs" in texts[0]
    assert "NBCACHE_SHARED_URL" in texts[1]
    assert "`two` is not understood" in texts[2] and "`--json` is not understood" in texts[3]
    assert "port that is not a number" in texts[4]
    assert "there is no store with the scheme 'nothing'" in texts[5]
    assert "neither a URL nor an existing folder" in texts[6] and "redis://host" in texts[6]
    assert "`now` is not understood. Usage: %nbcache disconnect" in texts[7]
    assert ran[-1]["success"] and "not connected" in texts[-1]
    assert not connected


def test_connecting_shows_who_is_there_and_config_shows_no_secret(in_shell, tmp_path):
    with RedisServer(tmp_path / "redis", password="hunter2") as server:
        url = f"redis://:hunter2@{HOST}:{server.port}/0"
        shared = f"redis://{HOST}:{server.port}/0"
        texts = in_shell(
            f"""
session.cache.set_environment(here)
session.begin_cell(None)
session.cache.record('inductor', 'one', b'a graph', made=True)
session.end_cell()
value = []
for line in (
    'connect {url}', 'flush', 'connect', 'config', 'config --json', 'config shared_timeout=0.5',
    'config shared_timeout=never', 'doctor', 'status', 'disconnect', 'flush',
):
    value.append(run('%nbcache ' + line)['text'])
    [thread.join() for thread in threading.enumerate() if thread.name == 'nbcache-prefetch']
value.append(session.settings.to_env()['NBCACHE_SHARED_URL'] == '{url}')
value.append(repr([session.settings, session.notices]))
"""
        )
    assert texts[0].startswith(f"nbcache: connected to {shared}")
    assert texts[1].startswith("nbcache: everything is stored and shared")
    assert "saves about" in texts[2] and "just now" in texts[2]
    (line,) = [line for line in texts[3].splitlines() if line.startswith("  shared_url")]
    assert shared in line and "%nbcache connect" in line
    rows = {row["name"]: row["value"] for row in json.loads(texts[4])["settings"]}
    assert (rows["shared_url"], rows["shared_timeout"], rows["shared_connect_timeout"]) == (
        shared,
        "2",
        "0.25",
    )
    assert "seconds from 0.01 to 600 are needed" in texts[6]
    assert texts[9] == f"nbcache: disconnected from {shared}\n"
    assert texts[10].startswith("nbcache: everything is stored (")
    assert texts[11] is True


def test_flushing_waits_for_what_connecting_publishes(in_shell, tmp_path):
    waiting_text, shared_text, keys = in_shell(
        f"""
from nbcache.sharing.live.level import SharedLevel
from nbcache.ui.ipython import kernel_verbs
kernel_verbs._WAIT_SECONDS = 0.05
session.cache.set_environment(here)
session.begin_cell(None)
session.cache.record('inductor', 'one', b'a graph', made=True)
session.end_cell()
session.cache.flush()
compare, go = SharedLevel.absent, threading.Event()
def absent(*args):
    assert go.wait(60)
    return compare(*args)
SharedLevel.absent = absent
run('%nbcache connect {tmp_path}/shared')
value = [run('%nbcache flush')['text']]
kernel_verbs._WAIT_SECONDS = 60
go.set()
value.append(run('%nbcache flush')['text'])
refs = session.cache.stored_manifest().artifacts
value.append([ref.key for ref in session.shared_client.level.present(here, refs)])
"""
    )
    assert waiting_text.startswith(f"nbcache: some graphs are not yet shared with {tmp_path}/shared (")
    assert shared_text.startswith("nbcache: everything is stored and shared (")
    assert keys == ["one"]


def test_connecting_again_takes_the_settings_that_were_changed_since(in_shell, tmp_path):
    lines = [
        f"connect {tmp_path}/one",
        f"config shared_url={tmp_path}/two",
        "connect",
        "connect",
        "disconnect",
    ]
    texts = in_shell(f"value = [run('%nbcache ' + line)['text'] for line in {lines!r}]")
    assert f"connected to {tmp_path}/one\n" in texts[0]
    assert texts[2] == texts[3] and f"connected to {tmp_path}/two\n" in texts[2]
    assert f"disconnected from {tmp_path}/two\n" in texts[4]


def test_what_is_shared_goes_where_this_kernel_is_connected_to(in_shell, tmp_path):
    """The line that a colleague pastes holds the whole place, as one word."""
    texts = in_shell(
        f"""
os.chdir({str(tmp_path)!r})
session.cache.set_environment(here)
session.begin_cell(None)
session.cache.record('inductor', 'one', b'a graph', made=True)
session.cache.record('inductor', 'two', b'a graph', made=True)
session.end_cell()
value = []
for line in (
    'connect ./one', 'config shared_url=./two', 'share team/gpt', 'share "my model"', 'clear --yes',
    'restore {tmp_path}/one#team/gpt', "restore '{tmp_path}/one#my model'",
):
    value.append(run('%nbcache ' + line)['text'])
"""
    )
    assert "1 artifact." in texts[2]
    assert f"\n%nbcache restore {tmp_path}/one#team/gpt\n" in texts[2]
    assert f"\n%nbcache restore '{tmp_path}/one#my model'\n" in texts[3]
    assert texts[4].endswith(f"\n  shared graphs stay on {tmp_path}/one\n")
    assert "1 artifact," in texts[5] and "1 artifact," in texts[6]  # one content, under two keys
    assert not (tmp_path / "two").exists()


def test_a_dead_server_in_the_environment_is_one_notice_and_the_kernel_works(in_shell):
    dead = f"redis://:hunter2@{HOST}:{free_port()}"
    reports = in_shell(
        "session.cache.set_environment(here)\n"
        "[t.join() for t in threading.enumerate() if t.name == 'nbcache-prefetch']\n"
        "value = [run('1 + 1'), run('2'), session.notices, list(session.find('inductor', 'one')), "
        "session.wait_for_other_kernel('one') or [], run('%nbcache connect')['text']]",
        NBCACHE_SHARED_URL=dead,
    )
    asked = reports.pop()
    assert "off for now: Redis cannot be reached" in asked and "next: check that the server runs" in asked
    assert "nobody" not in asked
    assert reports[0]["success"] and reports[0]["text"].count("cannot be reached") == 1
    assert "cannot be reached" not in reports[1]["text"]
    assert len(reports[2]) == 1 and reports[3:] == [[], []]


def test_unloading_ends_in_time_while_redis_hangs(in_shell, tmp_path):
    with RedisServer(tmp_path / "redis") as server:
        assert server._process is not None
        began = time.monotonic()
        seconds, flushed = in_shell(
            "session.cache.set_environment(here)\n"
            "session.find('inductor', 'one')\n"
            "session.wait_for_other_kernel('one')\n"
            f"os.kill({server._process.pid}, signal.SIGSTOP)\n"
            "session.cache.record('inductor', 'one', b'a graph', made=True)\n"
            "flushed = run('%nbcache flush')['text']\n"
            "began = time.monotonic()\n"
            "run('%unload_ext nbcache')\n"
            "value = [time.monotonic() - began, flushed]",
            NBCACHE_SHARED_URL=server.url,
            NBCACHE_SHARED_TIMEOUT="0.3",
        )
        assert seconds < 30.0
        assert (
            "some graphs are not yet shared with redis://" in flushed
            and "off for now: Redis did not" in flushed
        )
        assert time.monotonic() - began < 60.0


def test_python_connects_as_the_magic_does(in_shell, redis_server):
    name, left = in_shell(
        "session.connect(os.environ['URL'])\nvalue = [session.shared_client.level.name]\n"
        "session.disconnect()\nvalue.append(session.shares)",
        URL=redis_server.url,
    )
    assert (name, left) == (redis_server.url, False)


def test_an_empty_url_connects_to_none_whatever_torchs_variables_say(in_shell, redis_server):
    torchs = {"TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "1", "TORCHINDUCTOR_REDIS_URL": redis_server.url}
    assert in_shell("value = session.shares", **torchs) is True
    assert in_shell("value = session.shares", **torchs, NBCACHE_SHARED_URL="") is False


def test_what_a_store_says_as_it_fails_is_printed_as_one_line(in_shell, tmp_path):
    texts = in_shell(
        f"""
from nbcache.core.errors import StoreUnavailable
run('%nbcache connect {tmp_path}/team')
shared = session.shared_client.level
evil = StoreUnavailable('it says\\n\\x1b[31mred\\u202e' + 'x' * 10000, next_step='see\\x1b')
shared.fails(evil)
shared.ask = lambda: None
session.cache.set_environment(here)
session.begin_cell(None)
session.cache.record('inductor', 'one', b'a graph', made=True)
session.end_cell()
value = [run('%nbcache ' + line)['text'] for line in ('connect', 'flush')]
""",
    )
    for text in texts:
        assert "off for now: it says ?[31mred?xxx" in text
        assert len(text) < 5000
        assert all(line.isprintable() for line in text.split("\n"))
