"""The running cells: their switches and graphs, the report at the end of each, and the idle time between."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import ExecutionResult
from IPython.display import display as _display

from nbcache.core.errors import HitRequired, StoreError
from nbcache.core.key import sha256
from nbcache.core.model import Outcome
from nbcache.core.reports import Cell, CellReport
from nbcache.core.text import NOTHING
from nbcache.kernel.session import Session
from nbcache.torch_bridge import compile_options
from nbcache.ui.display.render import Rendered
from nbcache.ui.display.reports import render_notices, render_report
from nbcache.ui.ipython.compile_cell import CompileOptions, check, check_callable, usage_error
from nbcache.ui.ipython.live_line import LiveLine

_SETTLE = 0.1
"""Seconds between a cell and idle time, so that the next of several queued cells runs first."""
_BREATH = 0.002
"""The least pause between two calls of `step`, in which the kernel receives messages."""

_CODE_NAMES = "/nbcache/cell-{}.py"
"""File name of a cell's code, the same in every kernel: torch's dynamic-shape profiles contain it."""


@dataclass(slots=True)
class _Running:
    info: Any
    """IPython's `ExecutionInfo`, by whose identity runs are compared."""
    chosen: CompileOptions | None = None
    """Its options; None without `%%compile_cached`."""


class IdleTime:
    """Calls `step` repeatedly on the kernel's event loop while no cell runs.

    `step` returns the seconds until its next call, or None to wait for the end of another cell. `begin` and
    `end` may be called on any thread, as a subshell runs its cells on another thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, step: Callable[[], float | None]) -> None:
        self._loop = loop
        self._step = step
        self._timer: asyncio.TimerHandle | None = None
        self._resting = False

    def begin(self) -> None:
        self._resting = True
        with contextlib.suppress(RuntimeError):  # the loop is closed, as the kernel ends
            self._loop.call_soon_threadsafe(self._schedule, _SETTLE)

    def end(self) -> None:
        """Stop, since a cell begins or the extension is unloaded."""
        self._resting = False

    def _schedule(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._call)

    def _call(self) -> None:
        self._timer = None
        if self._resting:
            wait = self._step()
            if wait is not None and self._resting:
                self._schedule(max(wait, _BREATH))


class Cells:
    """Follows the cells of one shell, and shows reports on their graphs."""

    def __init__(self, shell: Any, session: Session, problem: StoreError | None) -> None:
        """`problem` is why the store is in memory; None for a store on disk."""
        self._shell = shell
        self._session = session
        self._problem = problem
        self.autosnapshot: Callable[[], object] = lambda: None
        self.idle: IdleTime | None = None
        self._line: LiveLine | None = None
        self._running: list[_Running] = []
        """The running cells, outermost first; more than one if a cell runs another."""
        self._needs_number = False
        self.began = time.monotonic()
        self.waiting: list[Callable[[], None]] = []
        """Actions for the end of the running cell."""
        self._scope = contextlib.ExitStack()
        """Undoes the running cell's switches: default device, default arguments of torch.compile."""

    @property
    def are_running(self) -> bool:
        return bool(self._running)

    @property
    def last_raised(self) -> bool:
        """True if the cell before the running one raised an exception."""
        return not self._shell.last_execution_succeeded

    def close(self) -> None:
        """Undo the switches of a running cell, and remove its live line."""
        self._end_line()
        self._scope.close()

    def _end_line(self) -> None:
        if self._line is not None:
            self._line.finish(None)
            self._line = None

    def join(self) -> None:
        """Begin the cell that loads the extension, as it may also compile."""
        for source in self._shell.history_manager.input_hist_raw[1:]:
            self._session.program.note_cell(source)
        frame = sys._getframe()
        while frame is not None and frame.f_code.co_name != "run_cell_async":
            frame = frame.f_back  # type: ignore[assignment]
        result = frame and frame.f_locals.get("result")
        if isinstance(result, ExecutionResult) and result.info is not None and not result.info.silent:
            self._running.append(_Running(result.info))
            self._session.begin_cell(Cell.of(result.info.raw_cell, result.execution_count))

    def name(self, code: str, number: int) -> str:
        """Return the file name of a cell's code, and record its cell; `number` is the execution count."""
        name = _CODE_NAMES.format(sha256(code.encode())[:16])
        self._session.report_log.name_code(name, Cell.of(code, number))
        return name

    def number(self, code: str, number: int) -> None:
        """Set the running cell's execution count. At `pre_run_cell` it may still be another cell's."""
        if self._needs_number:
            self._session.begin_cell(Cell.of(code, number))
            self._needs_number = False

    def before(self, info: Any) -> None:
        """Begin a cell: IPython's event `pre_run_cell`."""
        if self.idle is not None:
            self.idle.end()
        self._running.append(_Running(info))
        if info.store_history:
            self._session.program.note_cell(info.raw_cell, getattr(info, "cell_id", None))
        if len(self._running) > 1:  # a cell that another cell runs with `%run` or `run_cell`
            return
        self._needs_number, self.began = info.store_history, time.monotonic()
        self._session.begin_cell(Cell.of(info.raw_cell, None))
        settings, is_kernel = self._session.settings, getattr(self._shell, "kernel", None) is not None
        if is_kernel and settings.live and settings.report != "never":
            self._line = LiveLine(self._session.activity, self._shell.display_pub)
            self._line.start()

    def apply_options(self, options: CompileOptions) -> None:
        """Apply the options of a marked cell. Raise only UsageError: after others, IPython drops us."""
        if not self._running:  # a silent execution, which has no `post_run_cell` event
            return
        try:
            check(options)
            self._scope.enter_context(compile_options.default_device(options.device))
            self._scope.enter_context(compile_options.default_arguments(options.torch_arguments()))
        except UsageError:
            raise
        except Exception as error:  # torch is missing, or rejects the device
            raise usage_error(str(error).strip().splitlines()[0]) from error
        self._running[-1].chosen = options
        self._session.saving = options.save
        if options.quiet:
            self._end_line()
        elif self._line is not None:
            self._line.reserve()

    def compile(self, target: str, value: Any) -> Any:
        """Compile a target; a marked cell calls this after each statement that binds one."""
        check_callable(target, value)
        chosen = self._running[-1].chosen if self._running else None
        return compile_options.compile_target(value, chosen.torch_arguments() if chosen else {})

    def after(self, result: Any) -> None:
        """End a cell and show its report: IPython's event `post_run_cell`."""
        if result is None or not any(cell.info is result.info for cell in self._running):
            return  # the cell began before nbcache was loaded, or is empty and never began
        while self._running[-1].info is not result.info:
            self._running.pop()
        chosen = self._running.pop().chosen
        if self._running:  # `%%capture` and `run_cell_magic` nest cells; both get the options
            outer = self._running[-1]
            outer.chosen = outer.chosen or chosen
            return
        if self.idle is not None:
            self.idle.begin()
        self._scope.close()
        if ".compile(" in result.info.raw_cell:
            self._session.attempt("looking for modules", self._note_modules)
        report = self._session.end_cell(name=chosen.name if chosen else None, unfinished=not result.success)
        if report.graphs and self._session.settings.autosnapshot:
            self.autosnapshot()
        line, self._line = self._line, None
        shown = self._report(report, chosen, result)
        if line is not None:
            line.finish(shown)
        elif shown is not None:
            _display(shown)  # type: ignore[no-untyped-call]
        missed = [graph for graph in report.graphs if graph.outcome is not Outcome.HIT]
        if chosen is not None and chosen.require_hit and missed and result.success:
            lines = [f"--require-hit: {len(missed)} of {len(report.graphs)} graphs did not hit:"]
            lines += [
                f"  {graph.function} {graph.compile_id} {graph.direction}: {graph.outcome}, "
                f"{graph.reason or NOTHING}"
                for graph in missed
            ]
            next_step = "run the cell without --require-hit once, so that its graphs are stored"
            error = HitRequired("\n".join(lines), next_step=next_step)
            result.error_in_exec = error
            self._shell.showtraceback((type(error), error, None))

    def _note_modules(self) -> None:
        for name in compile_options.uncompiled_modules(self._shell.user_ns):
            self._session.notice(
                f"{name}.compile() compiles nothing: torch does not compile its own torch.nn classes so; "
                f"write {name} = torch.compile({name})",
                "not-compiled",
            )

    def _report(self, report: CellReport, chosen: CompileOptions | None, result: Any) -> Rendered | None:
        setting = self._session.settings.report
        wanted = setting == "always" or (setting == "magic" and chosen is not None)
        if not wanted or (chosen is not None and chosen.quiet):
            return render_notices(report) if report.notices else None
        if not report.graphs and not report.notices and chosen is None:
            return None
        why = self._obstacle(chosen)
        if not why and isinstance(result.error_in_exec, KeyboardInterrupt):
            return render_report(report, stored=False)  # the interrupted graph is not stored
        if not why and not result.success:
            return render_report(report, why="though the cell raised")
        return render_report(report, stored=not why, why=why)

    def _obstacle(self, chosen: CompileOptions | None) -> str:
        """Return why the cell's graphs are not stored for the next kernel; empty if they are."""
        settings, store = self._session.settings, self._session.artifacts.store
        if chosen is not None and not chosen.save:
            return "--no-save"
        if not settings.save:
            return f"save=off ({settings.origin('save')})"
        if self._session.environment is None:
            return "this kernel goes on as plain torch (%nbcache doctor)"
        if self._problem is not None:
            return "the local store cannot be used (%nbcache doctor)"
        return "the local store cannot be written to (%nbcache doctor)" if store.read_only else ""
