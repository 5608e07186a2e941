"""What max-autotune has measured, as artifacts: torch's benchmark file, entry by entry.

torch keeps in one JSON file, `cache/<hash of device, Triton and CUDA>` in its cache folder, how long each
candidate for a matrix multiplication took, and whether padding one pays. It asks only while it compiles, so a
hit needs none of it; but another graph with the same multiplication has all candidates compiled and run again
where the file is gone: seconds to minutes. Mega-Cache leaves the file out.

One artifact is what one benchmark has measured: the times of the candidates that torch compared. Those of
other candidates for the same multiplication are variants under the same key. Whether times may be used, torch
decides as ever: by the file's hash, the inputs, the precision, and the hash of each candidate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from nbcache.core.canonical_json import Fields, corrupt, from_json, to_json
from nbcache.core.errors import FormatError
from nbcache.core.key import components, digest
from nbcache.kernel.events import ArtifactSeen
from nbcache.torch_bridge.events import stamp
from nbcache.torch_bridge.torch_behavior import TORCHBEHAVIOR

if TYPE_CHECKING:
    from nbcache.torch_bridge.context import Context
    from nbcache.torch_bridge.patches import Patches

__all__ = [
    "TYPE",
    "decode_decision",
    "decode_times",
    "encode_decision",
    "encode_times",
    "provide_decisions",
    "provide_times",
]

T = TypeVar("T")

TYPE = "gemm_autotune"
_MOST_BYTES = 4 << 20
"""An exhaustive search has thousands of candidates, of about 100 bytes each."""
_RESTORING = "restoring what was benchmarked"
_RECORDING = "recording what was benchmarked"
DECISIONS: dict[str, type[bool | float]] = {"should_pad": bool, "base_mm_benchmark_time": float}
"""What `pad_mm` keeps in the file, by the names of its functions, and of which type."""


def encode_times(times: Mapping[str, float]) -> bytes:
    """Return as an artifact's content milliseconds by candidates' hashes; `inf` says that one cannot run."""
    return to_json(TYPE, {"times": {name: None if ms == math.inf else ms for name, ms in times.items()}})


def decode_times(content: bytes) -> dict[str, float]:
    """Return what `encode_times` was given; FormatError, whatever else the bytes are."""
    times = _fields(content).object("times")
    each = Fields(times, f"{TYPE} of times")
    return {name: math.inf if ms is None else each.seconds(name) for name, ms in times.items()}


def encode_decision(value: bool | float) -> bytes:
    """Return as an artifact's content whether padding pays, or how many milliseconds go without."""
    return to_json(TYPE, {"pads": int(value)} if isinstance(value, bool) else {"milliseconds": value})


def decode_decision(content: bytes, kind: type[bool | float]) -> bool | float:
    """Return what `encode_decision` was given, a bool or a float; FormatError, whatever else it is."""
    fields = _fields(content)
    return bool(fields.integer("pads")) if kind is bool else fields.seconds("milliseconds")


def _fields(content: bytes) -> Fields:
    if len(content) > _MOST_BYTES:
        raise corrupt(f"a {TYPE} is longer than any")
    return from_json(content, TYPE)


def provide_times(codecache: ModuleType, context: Context, patches: Patches) -> None:
    """Make candidates' times present before torch compares them: `PersistentCache.lookup`.

    It is first asked without a `benchmark`, to learn whether candidates must be compiled. Where the file
    lacks one of them, torch measures all anew, so that it compares what one machine has measured at one time.
    So what is stored replaces what is there of the candidates asked for, where it has all of them, and is
    left alone elsewhere. Of two processes that write the file at once one may lose, as with torch alone.
    """
    session, stored = context.session, _Stored(context, patches)

    precision_key: Callable[[], str] = (
        codecache.fp32_matmul_precision_key
        if TORCHBEHAVIOR.keys_by_precision
        else codecache.torch.get_float32_matmul_precision
    )

    def make_present(
        cache: Any, choices: list[Any], op: str, inputs: str, hint: int | None
    ) -> tuple[str, dict[Any, str]] | None:
        """Return the key, and the candidates' hashes; None where nothing is to be served or stored."""
        if not codecache.config.autotune_local_cache or not context.serving():
            return None
        if hint is not None:
            inputs = f"{inputs}_{hint}"
        precision = precision_key()
        key = _key(cache, op=op, inputs=inputs, precision=precision)
        hashes = {choice: choice.hash_key() for choice in choices}
        file = cache.get_local_cache()
        there = file.setdefault(op, {}).setdefault(inputs, {}).setdefault(precision, {})
        if there.keys() >= set(hashes.values()):
            return key, hashes
        for times in stored.under(key, decode_times):
            found = {name: times[name] for name in hashes.values() if name in times}
            if found.keys() == set(hashes.values()) and _is_of_use(found):
                there.update(found)
                stored.populate(key, partial(cache.update_local_cache, file))
                break
        return key, hashes

    def note(key: str, times: dict[str, float], measured: bool) -> None:
        if _is_of_use(times):
            stored.note(key, encode_times(times), measured)

    def lookup(
        original: Any,
        self: Any,
        choices: list[Any],
        op: str,
        inputs: str,
        benchmark: Callable[[Any], dict[Any, float]] | None,
        hint_override: int | None = None,
    ) -> dict[Any, float]:
        present = partial(make_present, self, choices, op, inputs, hint_override)
        known = session.attempt(_RESTORING, present)
        if known is None or benchmark is None:
            found: dict[Any, float] = original(self, choices, op, inputs, benchmark, hint_override)
            return found
        key, hashes = known
        measured = False

        def measure(choices: Any) -> dict[Any, float]:
            nonlocal measured
            measured = True
            return benchmark(choices)

        times: dict[Any, float] = original(self, choices, op, inputs, measure, hint_override)
        named = {hashes[choice]: ms for choice, ms in times.items() if choice in hashes}
        session.attempt(_RECORDING, partial(note, key, named, measured))
        return times

    patches.hook(codecache.PersistentCache, "lookup", lookup)


def provide_decisions(pad_mm: ModuleType, context: Context, patches: Patches) -> None:
    """Do the same with which multiplications are worth padding, and their time without: `pad_mm`.

    The scheduler's estimates in the same file (`LocalCache`) are left to torch: programs on several machines
    count on having the same ones.
    """
    session, stored = context.session, _Stored(context, patches)

    def follow(name: str, kind: type[bool | float]) -> None:
        put = vars(pad_mm)[f"set_cached_{name}"]

        def key_of(key: str) -> str | None:
            from torch._inductor import config

            if not config.autotune_local_cache or not context.serving():
                return None
            return _key(pad_mm.get_pad_cache(), **{name: key})

        def make_present(key: str) -> bool | float | None:
            if (ours := key_of(key)) is None:
                return None
            found = next(stored.under(ours, partial(decode_decision, kind=kind)), None)
            if found is not None:
                stored.populate(ours, partial(put, key, found))
            return found

        def note(key: str, value: Any, measured: bool) -> None:
            ours = key_of(key)
            if ours is not None and isinstance(value, kind) and 0 <= value < math.inf:
                stored.note(ours, encode_decision(value), measured)

        def get_cached(original: Any, key: str) -> Any:
            found = original(key)
            if found is None:
                found = session.attempt(_RESTORING, partial(make_present, key))
            if found is not None:
                session.attempt(_RECORDING, partial(note, key, found, False))
            return found

        def set_cached(original: Any, key: str, value: Any) -> Any:
            done = original(key, value=value)
            session.attempt(_RECORDING, partial(note, key, value, True))
            return done

        patches.hook(pad_mm, f"get_cached_{name}", get_cached)
        patches.hook(pad_mm, f"set_cached_{name}", set_cached)

    for name, kind in DECISIONS.items():
        follow(name, kind)


class _Stored:
    """Measurements in the session's levels."""

    def __init__(self, context: Context, patches: Patches) -> None:
        session = self._session = context.session
        self._owned = context.owned
        self._seen: set[tuple[str | None, str]] = set()
        """By compile id, the keys that graphs of this cell have used: one asks for a key again and again."""
        session.cell_ended.append(self._seen.clear)
        patches.undo(lambda: session.cell_ended.remove(self._seen.clear))

    def under(self, key: str, decode: Callable[[bytes], T]) -> Iterator[T]:
        """Yield what is stored under `key`, newest first; the shared level is asked only for more."""
        for ask in (self._session.cache.find, self._session.find_shared):
            for artifact in ask(TYPE, key):
                try:
                    yield decode(artifact.content)
                except FormatError as error:
                    self._session.rejected(TYPE, key, error)

    def populate(self, key: str, write: Callable[[], Any]) -> None:
        """Write into torch's file; where that fails, torch measures anew."""
        try:
            write()
        except OSError as error:
            self._session.rejected(TYPE, key, error)
        else:
            self._session.cache.mark_restored(TYPE, key)

    def note(self, key: str, content: bytes, measured: bool) -> None:
        """Record what was measured here, or found in the file; a graph counts it once."""
        at = stamp()
        if (at["compile_id"], key) not in self._seen:
            self._seen.add((at["compile_id"], key))
            self._session.emit(ArtifactSeen(**at, type=TYPE, size=len(content)))
        self._session.cache.record(TYPE, key, content, made=measured or self._owned())


def _key(cache: Any, **parts: str) -> str:
    """Return a key for what torch keeps under `parts` in the file of `cache`, 64 hexadecimal digits."""
    return digest(components({**parts, "system": cache.system["hash"]}))


def _is_of_use(times: Mapping[str, float]) -> bool:
    """Return whether torch can choose by these times: where no candidate could run, the reason may pass."""
    return all(ms >= 0 for ms in times.values()) and any(ms < math.inf for ms in times.values())
