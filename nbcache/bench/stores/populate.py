"""Make stored artifacts present in torch's folder, and say how long it took. Runs in a process of its own.

    python -m nbcache.bench.stores.populate fill FOLDER          store the artifacts in both forms
    python -m nbcache.bench.stores.populate WAY FOLDER OUTPUT    populate from one; OUTPUT gets the JSON

Each way is a function of `WAYS`, from the folder that `fill` made; torch's folder is
`TORCHINDUCTOR_CACHE_DIR`, and is empty. What is imported beforehand does not count.
"""

from __future__ import annotations

import json
import pickle
import random
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch._inductor import codecache

from nbcache.core.key import sha256
from nbcache.core.model import Artifact, Environment, Manifest
from nbcache.core.settings import Settings
from nbcache.kernel.prewarming import Steps
from nbcache.kernel.session import Session
from nbcache.kernel.snapshots import Sharing
from nbcache.snapshots.build import Origin
from nbcache.stores.directory import DirectoryStore
from nbcache.torch_bridge.environment import current
from nbcache.torch_bridge.providers.graphs import populate_graph

__all__ = ["WAYS", "artifacts", "fill"]

ARTIFACTS = 1_000
TOTAL_BYTES = 100_000_000
_TYPE = "inductor"
_SNAPSHOT = "bench.nbcache"
_NUMBER_BITS = 12
"""How random the numbers in the code are: with 40 bits it could be compressed to 0.14 only."""
_OPERATIONS = ("mul", "add", "sub", "maximum", "sigmoid", "tanh", "exp", "rsqrt", "where", "to_dtype")


def artifacts(count: int = ARTIFACTS, total: int = TOTAL_BYTES) -> Iterator[Artifact]:
    """Yield `count` artifacts with `total` bytes of content in all, the same ones every time.

    The content is like what inductor generates: many kernels of few shapes, with other numbers. Sizes
    spread over about one and a half orders of magnitude, as real ones do, and it compresses to 0.09: those of
    the standard models do to 0.06 to 0.10. It is a pickle, with the one attribute that torch looks at when it
    loads a bundle (`FxGraphCache._emit_triton_bundle`, 2.13).
    """
    source = random.Random(0)
    weights = [source.lognormvariate(0.0, 0.8) for _ in range(count)]
    left, weight_left = total, sum(weights)
    for number, weight in enumerate(weights):
        length = left if number == count - 1 else min(left, round(left * weight / weight_left))
        left, weight_left = left - length, weight_left - weight
        content = _pickled(_source_text(random.Random(number), length - _PICKLE_BYTES))
        yield Artifact(_TYPE, f"f{sha256(str(number).encode())[:50]}", content)


def _pickled(text: str) -> bytes:
    graph = SimpleNamespace(_triton_bundle=None, source_code=text)
    return pickle.dumps(graph, protocol=2)  # without frames, so that it is longer than `text` by a constant


_PICKLE_BYTES = len(_pickled(""))


def _source_text(source: random.Random, length: int) -> str:
    """Return `length` characters of generated code, ASCII."""
    parts: list[str] = []
    written = 0
    while written < length:
        name = f"cpp_fused_{'_'.join(source.sample(_OPERATIONS, 3))}_{source.randrange(1000)}"
        rows, columns = source.choice((16, 64, 128, 384)), source.choice((64, 192, 768, 3072))
        lines = [
            f"{name} = async_compile.cpp_pybinding(['const float*', 'float*'], r'''",
            f'extern "C" void {name}(const float* in_ptr0, float* out_ptr0)',
            "{",
            "    #pragma omp parallel num_threads(2)",
            f"    for (int64_t x0 = 0; x0 < {rows}LL; x0 += 1LL)",
            f"        for (int64_t x1 = 0; x1 < {columns}LL; x1 += 16LL)",
            "        {",
        ]
        before = "at::vec::Vectorized<float>::loadu(in_ptr0 + x1)"
        for step in range(source.randrange(4, 12)):
            operation, number = source.choice(_OPERATIONS), source.getrandbits(_NUMBER_BITS)
            constant = number / 2**_NUMBER_BITS
            lines.append(f"            auto tmp{step} = {operation}({before}, {constant!r}f);")
            before = f"tmp{step}"
        lines += [
            f"            {before}.store(out_ptr0 + x1 + {columns}LL*x0);",
            "        }",
            "}",
            "''')",
            "",
        ]
        parts += lines
        written += sum(len(line) + 1 for line in lines)
    return "\n".join(parts)[:length].ljust(length)


def fill(folder: Path) -> dict[str, Any]:
    """Store the artifacts below `folder` in all forms; return the bytes of each, and how long saving took."""
    from torch.compiler._cache import CacheArtifactManager

    environment = current()
    session = _session(folder, "store")
    store, kept = session.artifacts.store, session.artifacts
    assert isinstance(store, DirectoryStore)
    refs, content = [], 0
    for artifact in artifacts():
        refs.append(kept.put(environment.digest, artifact))
        CacheArtifactManager.record_artifact(artifact.type, artifact.key, artifact.content)
        content += len(artifact.content)
    kept.save_manifest(Manifest(environment, "", tuple(refs)))
    session.start()
    session.cache.environment_ready(environment)
    began = time.perf_counter()
    taken = Sharing(session).write(folder / _SNAPSHOT, Origin("", 0.0, "nbcache bench"))
    snapshot_seconds = time.perf_counter() - began
    session.close()
    began = time.perf_counter()
    saved = torch.compiler.save_cache_artifacts()
    assert saved is not None
    (folder / "bundle").write_bytes(saved[0])
    return {
        "artifacts": len(refs),
        "content": content,
        "bytes": {
            "nbcache": store.size("artifact/") + store.size("manifest/"),
            "snapshot": len(taken.data),
            "mega-cache": len(saved[0]),
        },
        "save_seconds": {"snapshot": snapshot_seconds, "mega-cache": time.perf_counter() - began},
    }


class _NoHooks:
    """A `CompilerBridge` that leaves torch alone: the benchmark is what asks for artifacts."""

    def install(self, session: Session) -> None: ...

    def uninstall(self) -> None: ...

    def configure(self) -> None: ...

    def clear(self) -> None: ...

    def disown(self) -> None: ...

    def prewarm(self) -> Steps:
        return iter(())


def _session(folder: Path, store: str) -> Session:
    settings = Settings(dir=folder / store, trust_dir=folder / "keys")
    return Session(settings, _NoHooks(), DirectoryStore(settings.dir))


def _from_store(folder: Path, environment: Environment, closing: ExitStack) -> None:
    """Have the session read ahead, and the bridge write what it provides."""
    _populate(_session(folder, "store"), environment, closing)


def _from_snapshot(folder: Path, environment: Environment, closing: ExitStack) -> None:
    """Have a session whose store is empty restore a snapshot, its signature and digests checked."""
    store = f"store-{secrets.token_hex(4)}"
    closing.callback(shutil.rmtree, folder / store)
    session = _session(folder, store)
    sharing = Sharing(session)
    sharing.look()
    sharing.restore(sharing.receive(str(folder / _SNAPSHOT)))
    _populate(session, environment, closing)


def _populate(session: Session, environment: Environment, closing: ExitStack) -> None:
    closing.callback(session.close, 60.0)  # storing what a snapshot brought is waited for by nobody
    session.start()
    session.cache.environment_ready(environment)
    for key in session.cache.keys_of(_TYPE, timeout=60.0):
        populate_graph(codecache, session, codecache.FxGraphCache, _TYPE, key)


def _from_bundle(folder: Path, environment: Environment, closing: ExitStack) -> None:
    """Have torch load its bundle."""
    torch.compiler.load_cache_artifacts((folder / "bundle").read_bytes())


WAYS: Mapping[str, Callable[[Path, Environment, ExitStack], None]] = {
    "nbcache": _from_store,
    "snapshot": _from_snapshot,
    "mega-cache": _from_bundle,
}
"""Ways to populate torch's folder; what is left to do afterwards is put on the stack."""


def main(way: str, folder: Path, output: Path) -> None:
    """Do what the command line says, and write what there is to say about it to `output`."""
    if way == "fill":
        output.write_text(json.dumps(fill(folder)))
        return
    environment = current()
    torch.compiler._cache.CacheArtifactManager._ensure_cache_artifacts_registered()  # its imports
    with ExitStack() as closing:
        began = time.perf_counter()
        WAYS[way](folder, environment, closing)
        seconds = time.perf_counter() - began
    present = sum(len(list(leaf.iterdir())) for leaf in Path(codecache.cache_dir(), "fxgraph").glob("*/*"))
    output.write_text(json.dumps({"seconds": seconds, "present": present}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
