"""Runs a call eager and compiled, and measures: seconds, results, graph breaks, recompiles, memory."""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from nbcache.core.errors import NbcacheError
from nbcache.core.model import Outcome
from nbcache.core.reports import GraphRecord
from nbcache.core.text import counted, one_line
from nbcache.explain.diagnosis import (
    Agreement,
    Break,
    Comparison,
    Diagnosis,
    Recompile,
    Resized,
    Timing,
    Variant,
)
from nbcache.explain.guards import recompile_action
from nbcache.torch_bridge.diagnosing.copies import Call, Copied, copied, of_tensor
from nbcache.torch_bridge.diagnosing.kept import forget_sizes, kept, seeded
from nbcache.torch_bridge.diagnosing.noted import Noted, break_of, guard_of, recompiled
from nbcache.torch_bridge.diagnosing.results import compared, parts_of
from nbcache.torch_bridge.diagnosing.sizes import other_sizes, shared_size, tensors_in, with_size
from nbcache.torch_bridge.diagnosing.users import put_back_later

if TYPE_CHECKING:
    from nbcache.kernel.session import Session

__all__ = ["diagnose"]

T = TypeVar("T")

_WARM_UP = 2
"""Calls before those that are timed; CUDA graphs are recorded in the second."""
_MOST_SECONDS = 10.0
"""No more calls are timed after so many seconds, if there are `_FEWEST`."""
_FEWEST = 3
_LONGEST = 320
"""Characters of an error."""
_SUSPECT = (Agreement.LARGER, Agreement.DIFFERENT)
_RANDOM = "it draws random numbers, and compiled code draws others by the same seed"


def diagnose(session: Session, call: Call, modes: Sequence[str], runs: int) -> Diagnosis:
    """Return what running a call eager and compiled in each mode comes to; `runs` calls are timed of each.

    The user's objects are left alone as far as they can be copied. What the call prints is not shown. Raises
    what the call itself raises.
    """
    __tracebackhide__ = True
    if _is_off():
        raise NbcacheError(
            "torch.compile is switched off, so nothing can be compared",
            where="%nbcache diagnose",
            next_step="set torch._dynamo.config.disable = False, and leave TORCHDYNAMO_DISABLE unset",
        )
    begun = len(session.graphs)
    with (
        session.report_log.holding() as notices,
        kept(),
        open(os.devnull, "w", encoding="utf-8", errors="replace") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        diagnosing, put_back = _Diagnosing(session, of_tensor(call), runs), put_back_later()
        try:
            found = diagnosing.all(modes)
        finally:
            changed, left = put_back()
    compiled = {graph.function for graph in session.graphs[begun:]} | {call.name.rpartition(".")[2]}
    for text in notices:
        if not any(text.startswith(f"{name} ") for name in compiled):  # else it is about a copy
            session.notice(text)
    return replace(found, notes=(*found.notes, *_of_users(changed, left)))


def _of_users(changed: int, left: int) -> Iterator[str]:
    """Yield what became of tensors of the user's: how many changed, and how many of these stay so."""
    if changed:
        was = "was" if changed == 1 else "were"
        but = f", but for {left}, which stay changed" if left else ""
        yield f"{counted(changed, 'tensor')} of yours that no copy covers changed, and {was} put back{but}"


def _is_off() -> bool:
    """Tell whether torch.compile runs everything eager."""
    import torch._dynamo.config

    return bool(torch._dynamo.config.disable)


class _Diagnosing:
    def __init__(self, session: Session, call: Call, runs: int) -> None:
        self._session = session
        self._call = call
        self._runs = runs
        self._notes: dict[str, None] = {}
        self._is_users = False
        """Whether what runs is the user's own, eager."""
        self._runner: Copied
        """What runs eager."""
        self._eager_seconds: list[float] = []
        """Seconds of the calls of it that were timed."""
        self._kernel_seconds: float | None = None
        """Seconds of building a kernel, in the first mode; None before it."""
        self._graphs: int | None = None
        """Into how many graphs the call fell; None before it is compiled."""
        self._breaks: tuple[Break, ...] = ()
        self._recompiles: tuple[Recompile, ...] = ()
        self._incomparable: str | None = None
        """Why results cannot be compared, empty where they can; None where that is not known yet."""

    def all(self, modes: Sequence[str]) -> Diagnosis:
        """Measure everything."""
        __tracebackhide__ = True
        runner, parts = self._eager(0)
        for name, kind in runner.uncopied.items():
            self._notes[f"{name} ({kind}) cannot be copied: what the calls change of it stays changed"] = None
        self._runner = runner
        with _eagerly():
            eager_peak = _peak(runner.run)
        size = shared_size(self._call)
        variants: list[Variant] = []
        resized: tuple[Resized, ...] | None = None
        for mode in dict.fromkeys(modes):
            begun = len(self._session.graphs)
            variant, compiled = self._variant(mode, parts)
            if compiled is not None and self._is_at_limit(begun):
                resized = resized or ()
            if resized is None and compiled is not None and size is not None:
                resized = tuple(self._resized(runner, compiled, size))
            variants.append(variant)
            del compiled
        if not self._eager_seconds:
            self._timed(None)
        gc.collect()  # what was compiled goes now, not amid the user's next cell
        return Diagnosis(
            expression=self._call.text,
            device=_device(self._call, runner),
            eager=Timing(tuple(self._eager_seconds)),
            variants=tuple(variants),
            graphs=self._graphs or 0,
            breaks=self._breaks,
            recompiles=self._recompiles,
            size=size,
            resized=resized or (),
            eager_peak_bytes=eager_peak,
            notes=tuple(self._notes),
        )

    def _is_at_limit(self, begun: int) -> bool:
        """Tell whether a function has as many versions as torch makes, and note it: others run eagerly."""
        full = [each for each in self._session.graphs[begun:] if 0 < each.recompile_limit <= each.versions]
        for each in full[:1]:
            what = f"{each.function} has {each.versions} versions, as many as torch makes"
            note = "calls that fit none ran eagerly, and are among the seconds; other sizes are not tried"
            self._notes[f"{what}: {note}"] = None
        return bool(full)

    # --- runs -----------------------------------------------------------------------------------

    def _eager(self, seed: int) -> tuple[Copied, dict[str, Any]]:
        """Return what was copied and run once, and what came of it then, which later calls do not change."""
        __tracebackhide__ = True
        copy = copied(self._call)
        seeded(seed)
        output = self._of_user(copy.run)
        return copy, {place: _own(each) for place, each in parts_of(output, copy.modules).items()}

    def _of_user(self, run: Callable[[], T]) -> T:
        """Run something eager; an error in there is the user's."""
        __tracebackhide__ = True
        self._is_users = True
        with _eagerly():
            result = run()
        self._is_users = False
        return result

    def _variant(self, mode: str, eager: dict[str, Any]) -> tuple[Variant, Copied | None]:
        """Return the call in one mode, and what was compiled; None where that fails."""
        before, noted = len(self._session.graphs), Noted(self._session)
        try:
            compiled, seconds, comparison = self._compiled(mode, eager)
            first = self._graphs is None
            if first:
                self._graphs, self._breaks = noted.graphs(), tuple(noted.breaks())
                if not self._graphs and not self._breaks:
                    self._breaks = tuple(self._whole())
            called = len(self._session.graphs)
            seconds += self._warmed(compiled.run)
            warm = len(self._session.graphs)
            begun = len(self._eager_seconds)
            timing = self._timed(compiled.run)
            eager_timing = Timing(tuple(self._eager_seconds[begun:]))
            seconds -= (1 + _WARM_UP) * timing.median
            if first:
                self._recompiles = tuple(recompiled(self._session.graphs[called:], warm - called))
            saved = self._saved(self._session.graphs[before:])
            if comparison.agreement in _SUSPECT:
                comparison = self._looked_into(comparison, mode, eager)
            with _compiling():
                _begin_step()
                peak = _peak(compiled.run)
        except Exception as error:
            if self._is_users:
                raise
            return Variant(mode, failure=_short(error)), None
        found = Variant(
            mode,
            timing,
            eager_timing,
            compile_seconds=max(seconds, 0.0),
            saved_seconds=max(saved, 0.0),
            comparison=comparison,
            peak_bytes=peak,
        )
        return found, compiled

    def _saved(self, made: Sequence[GraphRecord]) -> float:
        """Return the seconds that compiling graphs would have taken more, had nothing been there.

        A later mode finds kernels that an earlier one has just built: each counts as one of those did.
        """
        saved = sum(graph.saved_seconds or 0.0 for graph in made)
        missed = [graph for graph in made if graph.outcome is Outcome.MISS]
        if self._kernel_seconds is not None:
            return saved + self._kernel_seconds * sum(each.kernels - each.kernels_compiled for each in missed)
        built = sum(graph.kernels_compiled for graph in missed)
        self._kernel_seconds = sum(graph.seconds.get("build", 0.0) for graph in missed) / max(built, 1)
        return saved

    def _whole(self) -> Iterator[Break]:
        """Yield why there is no graph at all: torch leaves a function whole to Python without saying so."""
        import torch

        copy = copied(self._call)
        copy.function = torch.compile(copy.function, backend="eager", fullgraph=True, **_isolated())
        try:
            with _compiling():
                copy.run()
        except Exception as error:
            yield break_of(self._session, error)

    def _compiled(self, mode: str, eager: dict[str, Any]) -> tuple[Copied, float, Comparison]:
        """Compile a copy and run it once; return it, the wall seconds, and how its results compare."""
        import torch

        copy = copied(self._call)
        copy.function = torch.compile(copy.function, mode=mode, **_isolated())
        forget_sizes()
        seeded(0)
        with _compiling():
            _settle()
            began = time.perf_counter()
            output = copy.run()
            _settle()
            seconds = time.perf_counter() - began
        return copy, seconds, compared(eager, parts_of(output, copy.modules))

    def _warmed(self, run: Callable[[], Any]) -> float:
        """Return the seconds of the calls that warm up."""
        began = time.perf_counter()
        with _compiling():
            for _ in range(_WARM_UP):
                _begin_step()
                run()
            _settle()
        seconds = time.perf_counter() - began
        self._of_user(self._runner.run)
        return seconds

    def _timed(self, run: Callable[[], Any] | None) -> Timing:
        """Time calls, eager and compiled by turns, so that both meet what else the machine does.

        Each comes after one of its own that is not timed: after one of the other its data is not in the
        processor's caches, which made a small model a fifth slower. Returns the seconds of the compiled
        ones; those of the eager ones are kept with those of before. Without `run`, times eager ones alone.
        """
        __tracebackhide__ = True
        seconds: list[float] = []
        began = time.perf_counter()
        for done in range(self._runs):
            self._of_user(self._runner.run)
            self._eager_seconds.append(self._of_user(partial(_seconds, self._runner.run)))
            if run is not None:
                with _compiling():
                    _begin_step()
                    run()
                    _begin_step()
                    seconds.append(_seconds(run))
            if time.perf_counter() - began > _MOST_SECONDS and done + 1 >= _FEWEST:
                break
        return Timing(tuple(seconds))

    # --- results --------------------------------------------------------------------------------

    def _looked_into(self, found: Comparison, mode: str, eager: dict[str, Any]) -> Comparison:
        """Return how results compare once it is known whether they are the same whenever it runs."""
        if self._incomparable is None:
            if compared(eager, self._eager(0)[1]).agreement in _SUSPECT:
                self._incomparable = "run eager twice by the same seed, it does not return the same"
            else:
                other = compared(eager, self._eager(1)[1])
                self._incomparable = _RANDOM if other.agreement in _SUSPECT else ""
        if self._incomparable == _RANDOM:
            return self._with_eager_numbers(mode, eager)
        return Comparison(unknown=self._incomparable) if self._incomparable else found

    def _with_eager_numbers(self, mode: str, eager: dict[str, Any]) -> Comparison:
        """Return how results compare where compiled code draws the random numbers that eager code does."""
        import torch._inductor.config

        with torch._inductor.config.patch(fallback_random=True):
            found = self._compiled(mode, eager)[2]
        if found.agreement is Agreement.DIFFERENT:
            return Comparison(unknown=_RANDOM)
        self._notes["it draws random numbers: results were compared with fallback_random=True"] = None
        return found

    # --- sizes ----------------------------------------------------------------------------------

    def _resized(self, runner: Copied, compiled: Copied, size: int) -> Iterator[Resized]:
        """Yield what happens with other sizes; `runner` is what runs eager."""
        for other in other_sizes(size):
            try:
                with _eagerly():
                    runner.with_arguments(*with_size((runner.args, runner.kwargs), size, other)).run()
            except Exception as error:
                yield Resized(other, refused=_short(error))
                continue
            before = len(self._session.graphs)
            call = compiled.with_arguments(*with_size((compiled.args, compiled.kwargs), size, other))
            began = time.perf_counter()
            try:
                with _compiling():
                    _begin_step()
                    call.run()
                    _settle()
            except Exception as error:
                yield Resized(other, failure=_short(error))
                continue
            seconds = time.perf_counter() - began
            made = [graph for graph in self._session.graphs[before:] if graph.recompile_reason]
            yield Resized(
                other,
                seconds,
                tuple(dict.fromkeys(map(guard_of, made))),
                recompile_action(made[0].recompile_reason or "") if made else "",
            )


# --- torch ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _eagerly() -> Iterator[None]:
    """Run eager even what is compiled within."""
    import torch

    with torch.compiler.set_stance("force_eager"):
        yield


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """Compile, whatever the user has set."""
    import torch

    with torch.compiler.set_stance("default"):
        yield


def _begin_step() -> None:
    """Say that what CUDA graphs have returned is not needed any more."""
    import torch

    if torch.cuda.is_initialized():
        torch.compiler.cudagraph_mark_step_begin()


def _isolated() -> dict[str, bool]:
    """Return what keeps recompiles apart from the user's: since torch 2.13 (PyTorch's `isolate_recompiles`).

    Older ones share what they compile of functions that are called at a graph break.
    """
    import torch

    known = "isolate_recompiles" in inspect.signature(torch.compile).parameters
    return {"isolate_recompiles": True} if known else {}


def _seconds(run: Callable[[], Any]) -> float:
    """Return the wall seconds of one call, until all that it asked of a GPU is done."""
    __tracebackhide__ = True
    _settle()
    began = time.perf_counter()
    run()
    _settle()
    return time.perf_counter() - began


def _settle() -> None:
    """Wait until the GPU has done what it was asked for."""
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _peak(run: Callable[[], Any]) -> int | None:
    """Return the bytes of GPU memory that a call needs beyond what is held before it; None without a GPU."""
    import torch

    if not torch.cuda.is_initialized():
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


def _own(value: Any) -> Any:
    """Return a copy of a tensor; a number as it is."""
    return value.detach().clone() if hasattr(value, "detach") else value


def _device(call: Call, world: Copied) -> str:
    """Return where it runs: `cuda:0`, `cpu`."""
    modules = [next(module.parameters(), None) for module in world.modules.values()]
    found = [*tensors_in((call.args, dict(call.kwargs))), *(each for each in modules if each is not None)]
    return next((str(each.device) for each in found if each.device.type != "cpu"), "cpu")


def _short(error: BaseException) -> str:
    """Return an error in one line; what it is about stands deep in torch's."""
    return one_line(f"{type(error).__name__}: {error}".rstrip(": \n"), _LONGEST)
