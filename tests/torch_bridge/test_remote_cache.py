"""torch's remote caches while a shared level is connected: they are empty, and ask no Redis.

Tuning needs a GPU. Here torch's own classes for its results are used as torch uses them, with a made-up
backend, and torch's workers compile kernels that are none.
"""

from __future__ import annotations

import base64
import json
import pickle
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from support.front_door import (
    LOAD,
    SESSION,
    Environ,
    RunCells,
    tell,
    told,
)
from support.redis_servers import RedisServer

pytestmark = pytest.mark.compile

CONNECT = "get_ipython().run_line_magic('nbcache', 'connect memory://shared')"
DISCONNECT = "get_ipython().run_line_magic('nbcache', 'disconnect')"
APART = f"session = {SESSION}; import torch"
SHARE = f"session = {SESSION}; {CONNECT}; import torch"
TUNE = """\
import json, os, pickle
import torch
from torch._inductor import codecache, remote_cache
from torch._inductor.runtime import autotune_cache
from torch._inductor.runtime.autotune_cache import AutotuneCache, AutotuneCacheBundler

class Config:  # triton.Config, which is not there
    def __init__(self, kwargs, **more):
        self.kwargs = kwargs
        self.__dict__.update(more)

autotune_cache.Config = Config
configs = [Config({"XBLOCK": size}, num_warps=4, num_stages=1) for size in (64, 128)]

def kernel(source="source of a kernel"):
    return codecache.get_path(codecache.get_hash(source), "py")[2]

def cache(file=None, configs_hash="configs", **meta):
    meta = {"autotune_local_cache": False, "autotune_remote_cache": True, "backend_hash": "backend", **meta}
    return AutotuneCache.create(meta, file or kernel(), configs_hash)

def best(cache, **meta):
    found = cache.read_best(meta, [Config(dict(each.kwargs), num_warps=4, num_stages=1) for each in configs])
    return found and [found.kwargs, found.num_warps, getattr(found, "found_by_coordesc", False)]
"""


def test_torch_keeps_its_own_caches_while_nothing_is_shared_and_after_unloading(
    isolated: dict[str, str], run_cells: RunCells, redis_server: RedisServer
) -> None:
    env = {**isolated, "TORCHINDUCTOR_REDIS_URL": redis_server.url}
    before = """\
import json, torch, torch._inductor.async_compile
from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache
from torch._inductor import remote_cache
def hooks():
    methods = [getattr(remote_cache.RedisRemoteCache, name) for name in ("_get", "_put")]
    return [*methods, torch._inductor.async_compile.AsyncCompile.triton]
def kept(text):
    'Put a text into each cache, and return what is there.'
    found = []
    for each in (remote_cache.RemoteFxGraphCache("fx-graph-v1"), AOTAutogradCache.get_remote_cache()):
        each.put("key", text)
        found.append(each.get("key"))
    return found
found = hooks()
"""
    cells = [
        before,
        LOAD,
        f"session = {SESSION}",
        tell("kept('alone')"),
        CONNECT,
        tell("kept('shared')"),
        DISCONNECT,
        tell("kept('alone again')"),
        CONNECT,
        "%unload_ext nbcache",
        tell("[kept('unloaded'), hooks() == found]"),
    ]
    notebook = run_cells(cells, env)

    assert told(notebook, 3) == ["alone"] * 2
    assert told(notebook, 5) == [None] * 2
    with redis_server.client() as client:
        assert not any(b"shared" in (client.get(key) or b"") for key in client.scan_iter())
    assert told(notebook, 7) == ["alone again"] * 2
    assert told(notebook, 10) == [["unloaded"] * 2, True]


def test_what_nobody_signed_is_not_stored_as_if_it_had_been_made_here(
    isolated: dict[str, str], run_cells: RunCells, redis_server: RedisServer
) -> None:
    env = {**isolated, "TORCHINDUCTOR_REDIS_URL": redis_server.url}
    profile = {"data": base64.b64encode(pickle.dumps(defaultdict(None, profile="a stranger's"))).decode()}
    with redis_server.client() as client:
        client.set("pt2:dynamo-pgo::job:None::c1", json.dumps(profile))
    poison = """\
import redis
from torch._dynamo import pgo
torch._dynamo.config.automatic_dynamic_remote_pgo = True
torch.compiler.config.job_id = "job"
poisoned = cache()
key = poisoned.remote_cache[0]._get_key(poisoned.remote_cache[1])
value = {"XBLOCK": 64, "num_warps": 4, "num_stages": 1, "configs_hash": "configs"}
redis.Redis.from_url(os.environ["TORCHINDUCTOR_REDIS_URL"]).set(key, json.dumps(value));
"""
    hit = "found = [best(poisoned), dict(pgo.get_code_state())]; assert session.flush()"
    stored = tell(
        "[found, [ref.type for ref in session.cache.manifest().artifacts if ref.type in ('autotune', 'pgo')]]"
    )

    alone = run_cells([LOAD, APART, TUNE, poison, hit, stored], env)
    sharing = run_cells([LOAD, SHARE, TUNE, poison, hit, stored], env)

    assert told(alone, 5) == [[[{"XBLOCK": 64}, 4, False], {"profile": "a stranger's"}], []]
    assert told(sharing, 5) == [[None, {}], []]


def test_a_snapshot_restores_what_was_tuned_last(
    isolated: dict[str, str], run_cells: RunCells, wipe: Callable[[Environ], None], tmp_path: Path
) -> None:
    """`max-autotune` tunes a kernel twice: what its own configurations are worth, then coordinate descent."""
    there = str(tmp_path / "tuned.nbcache")
    local = "local = dict(autotune_local_cache=True, autotune_remote_cache=False)"
    save = """\
cache(**local).save(configs[1], 5_000_000)
cache(**local).save(Config({"XBLOCK": 96}, num_warps=2, num_stages=1), 9_000_000, found_by_coordesc=True)
"""
    run_cells([LOAD, APART, TUNE, local, save, f"session.snapshot({there!r})"], isolated)
    wipe(isolated)

    notebook = run_cells(
        [
            LOAD,
            f"%nbcache restore {there}",
            APART,
            TUNE,
            local,
            tell("best(cache(**local), coordinate_descent_tuning=True)"),
        ],
        {**isolated, "NBCACHE_DIR": str(tmp_path / "another")},
    )

    assert told(notebook, 5) == [{"XBLOCK": 96}, 2, True]


FAKE = '''\
"""Stands for a Triton kernel: what torch's worker and its parent do with one, it takes."""

import os
from torch._inductor.runtime.autotune_cache import AutotuneCache

META = {"autotune_remote_cache": True, "backend_hash": "backend"}


class Kernel:
    def __init__(self, file):
        self.cache = AutotuneCache.create(META, file, "configs")
        self.worker = os.getpid()
        self.read = self.cache._read()

    def nothing(self, *args, **kwargs):
        pass

    precompile = prepare_for_pickle = set_compile_info = restore_after_unpickle = nothing
    autotune_cache_info = None
'''
SOURCE = "from fake_kernel import Kernel\nfake = Kernel(__file__)\n"
WORK = f"""\
import json, time, torch, torch._inductor.config
torch._inductor.config.compile_threads = 2
from torch._inductor import async_compile
async_compile._emit_triton_kernel_compile_metric = lambda *args: None  # it asks for what Triton kernels have
SOURCE = {SOURCE!r}
def compile():
    while not async_compile.AsyncCompile.use_process_pool():
        time.sleep(0.05)
    kernel = async_compile.AsyncCompile().triton("fake", SOURCE).result()
    assert kernel.worker != os.getpid()
    return kernel
"""


@pytest.fixture
def with_fake(isolated: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Return an environment in which workers can compile `SOURCE`."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "fake_kernel.py").write_text(FAKE)
    return {**isolated, "PYTHONPATH": f"{isolated['PYTHONPATH']}:{folder}"}


def test_workers_find_what_another_notebook_tuned(
    with_fake: dict[str, str], run_cells: RunCells, wipe: Callable[[Environ], None]
) -> None:
    tune = "tuned = compile(); tuned.cache.save(configs[1], 5_000_000); assert session.flush()"
    run_cells([LOAD, SHARE, TUNE, WORK, tune], {**with_fake, "NBCACHE_NOTEBOOK": "/one.ipynb"})
    wipe(with_fake)

    notebook = run_cells(
        [LOAD, SHARE, TUNE, WORK, tell("compile().read")], {**with_fake, "NBCACHE_NOTEBOOK": "/two.ipynb"}
    )

    assert told(notebook, 4)["XBLOCK"] == 128
