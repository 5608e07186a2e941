"""Store and restore max-autotune's measured times, the entries in torch's benchmark file, as artifacts.

torch keeps the time of each candidate for a matrix multiplication in one JSON file of its cache folder. A hit
does not need the file. But without it, torch benchmarks the same multiplication in another graph again, for
seconds to minutes. Mega-Cache leaves the file out. One artifact has the times of the candidates that torch
compared; times of other candidates are variants under the same key. torch selects times by the file's hash,
the inputs, the precision, and the hash of each candidate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import ModuleType
from typing import Any

from nbcache.core.canonical_json import Fields, corrupt, from_json, to_json
from nbcache.core.errors import FormatError
from nbcache.core.key import components, digest
from nbcache.core.model import Artifact
from nbcache.core.patches import Patches
from nbcache.kernel.events import ArtifactSeen
from nbcache.torch_bridge.events import stamp
from nbcache.torch_bridge.hooks import Context
from nbcache.torch_bridge.torch_behavior import TORCHBEHAVIOR

TYPE = "gemm_autotune"
_MOST_BYTES = 4 << 20
"""An exhaustive search has thousands of candidates, of about 100 bytes each."""


def encode_times(times: Mapping[str, float]) -> bytes:
    """Return an artifact's content from candidates' hashes → ms; `inf` if a candidate cannot run."""
    return to_json(TYPE, {"times": {name: None if ms == math.inf else ms for name, ms in times.items()}})


def decode_times(content: bytes) -> dict[str, float]:
    if len(content) > _MOST_BYTES:
        raise corrupt(f"a {TYPE} is longer than any")
    times = from_json(content, TYPE).object("times")
    numbers = Fields(times, f"{TYPE} of times")
    return {name: math.inf if ms is None else numbers.seconds(name) for name, ms in times.items()}


def provide_times(codecache: ModuleType, context: Context, patches: Patches) -> None:
    """Hook `PersistentCache.lookup`: write stored times into torch's file before torch compares them.

    torch first calls it without a `benchmark`, to see whether it must compile candidates. If the file lacks a
    candidate, torch measures all, so that it compares times of one machine and moment. So nbcache writes
    stored times only if they cover all candidates.
    """
    session = context.session
    reported: set[tuple[str | None, str]] = set()
    """Compile ids and keys that this cell has reported: a graph looks a key up repeatedly."""
    session.cell_ended.append(reported.clear)
    patches.undo(lambda: session.cell_ended.remove(reported.clear))
    precision_key: Callable[[], str] = (
        codecache.fp32_matmul_precision_key
        if TORCHBEHAVIOR.keys_by_precision
        else codecache.torch.get_float32_matmul_precision
    )

    def variants(key: str) -> Iterator[Artifact]:
        yield from session.cache.find(TYPE, key)
        yield from session.find_shared(TYPE, key)

    def restore(
        cache: Any, choices: list[Any], op: str, inputs: str, hint: int | None
    ) -> tuple[str, dict[Any, str]] | None:
        if not codecache.config.autotune_local_cache or not context.serving():
            return None
        inputs, precision = inputs if hint is None else f"{inputs}_{hint}", precision_key()
        parts = {"op": op, "inputs": inputs, "precision": precision, "system": cache.system["hash"]}
        key, hashes = digest(components(parts)), {choice: choice.hash_key() for choice in choices}
        file = cache.get_local_cache()
        present = file.setdefault(op, {}).setdefault(inputs, {}).setdefault(precision, {})
        for artifact in variants(key) if set(hashes.values()) - present.keys() else ():
            try:
                times = decode_times(artifact.content)
                if set(hashes.values()) <= times.keys() and _has_winner(
                    wanted := {name: times[name] for name in hashes.values()}
                ):
                    present.update(wanted)
                    cache.update_local_cache(file)
                    session.cache.mark_restored(TYPE, key)
                    break
            except (FormatError, OSError) as error:
                session.reject(TYPE, key, error)
        return key, hashes

    def record(key: str, times: dict[str, float], measured: bool) -> None:
        if not _has_winner(times):
            return
        at, content = stamp(), encode_times(times)
        if (at["compile_id"], key) not in reported:
            reported.add((at["compile_id"], key))
            session.emit(ArtifactSeen(**at, type=TYPE, size=len(content)))
        session.cache.record(TYPE, key, content, made=measured or context.owned())

    def lookup(
        original: Any,
        self: Any,
        choices: list[Any],
        op: str,
        inputs: str,
        benchmark: Callable[[Any], dict[Any, float]] | None,
        hint_override: int | None = None,
    ) -> Any:
        restoring = partial(restore, self, choices, op, inputs, hint_override)
        keys = session.attempt("restoring benchmark results", restoring)
        if keys is None or benchmark is None:
            return original(self, choices, op, inputs, benchmark, hint_override)
        key, hashes = keys
        measured = False

        def measure(choices: Any) -> dict[Any, float]:
            nonlocal measured
            measured = True
            return benchmark(choices)

        times: dict[Any, float] = original(self, choices, op, inputs, measure, hint_override)
        by_hash = {hashes[choice]: ms for choice, ms in times.items() if choice in hashes}
        session.attempt("recording benchmark results", partial(record, key, by_hash, measured))
        return times

    patches.hook(codecache.PersistentCache, "lookup", lookup)


def _has_winner(times: Mapping[str, float]) -> bool:
    """Return whether torch can choose a candidate. If none could run, the cause may be temporary."""
    return all(ms >= 0 for ms in times.values()) and any(ms < math.inf for ms in times.values())
