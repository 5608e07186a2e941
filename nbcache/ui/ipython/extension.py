"""The IPython extension: parses, builds `Settings` and `Session`, and shows what they say."""

from __future__ import annotations

import atexit
import contextlib
import os
import shlex
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

from IPython.core.completer import (
    CompletionContext,
    SimpleCompletion,
    SimpleMatcherResult,
    context_matcher,
)
from IPython.core.error import UsageError
from IPython.core.interactiveshell import ExecutionResult
from IPython.display import display as _display

from nbcache.core.errors import HitRequired, NbcacheError, StoreError
from nbcache.core.key import sha256
from nbcache.core.model import Cell, CellReport, Outcome
from nbcache.core.settings import Settings
from nbcache.kernel.prewarming import Pause
from nbcache.kernel.session import Session
from nbcache.stores.base import Store
from nbcache.stores.directory import DirectoryStore
from nbcache.stores.memory import MemoryStore
from nbcache.torch_bridge import TorchBridge, compile_options
from nbcache.ui.display.render import Rendered, render_notices, render_report
from nbcache.ui.ipython import compile_cell
from nbcache.ui.ipython.compile_cell import MAGIC, CellTransformer, CompileOptions
from nbcache.ui.ipython.compile_targets import HOOK, TargetCompiler, is_compilable, never_bound, not_callable
from nbcache.ui.ipython.connect_magics import ConnectMagics
from nbcache.ui.ipython.greeting import Greeting
from nbcache.ui.ipython.idle import IdleTime
from nbcache.ui.ipython.live_line import LiveLine
from nbcache.ui.ipython.session_magics import USAGE, SessionMagics, completions
from nbcache.ui.ipython.snapshot_magics import ShareMagics
from nbcache.ui.locate import Location, locate

__all__ = ["Extension", "current_session", "load", "unload"]

_CODE_NAMES = "/nbcache/cell-{}.py"
"""Names of cells' code: the same in every kernel, so that torch's dynamic-shape profiles find it again."""
_FLUSH_SECONDS = 5.0
_USERS_THREADS = "Thread-"
"""Beginning of the names that Python gives threads which are given none, as people's are."""
_GREETING_SECONDS = 0.1
"""How long loading waits for what is stored of the notebook, once its snapshots have been looked for."""
_SHORT_PAUSE = 0.1
"""Seconds after which prewarming looks whether a thread or process has done its part."""

_extension: Extension | None = None


def load(shell: Any) -> None:
    """Load the extension into `shell`; nothing happens where it is loaded already."""
    global _extension
    if _extension is None:
        extension = Extension(shell)
        try:
            extension.load()
        except BaseException:
            extension.unload()
            raise
        _extension = extension


def unload(shell: Any) -> None:
    """Take the extension out again; nothing happens where it is not loaded."""
    global _extension
    if _extension is not None:
        _extension.unload()
        _extension = None


def current_session() -> Session:
    """Return the session of the loaded extension, or raise NbcacheError."""
    if _extension is None:
        raise NbcacheError(
            "nbcache has no session here", next_step="run `%load_ext nbcache`, or load it in IPython"
        )
    return _extension.session


@dataclass(slots=True)
class _Running:
    """A cell that runs."""

    info: Any
    """IPython's `ExecutionInfo`: what tells one run from another."""
    chosen: CompileOptions | None = None
    """Its options; None without `%%compile_cached`."""


class Extension:
    """Everything that `%load_ext nbcache` adds to one shell, and `%unload_ext nbcache` takes away."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        settings = Settings.from_env(os.environ)
        store, problem = _open_store(settings)
        self._bridge = TorchBridge(self._user_has_torch)
        self.session = Session(settings, self._bridge, store, locate_notebook=self._locate)
        if isinstance(store, DirectoryStore) and store.was_emptied:
            self.session.notice(
                f"{store.path} was open to others, who may have put code there: it was emptied"
            )
        self._snapshots = ShareMagics(self.session, self._locate, self._bridge.foreseen)
        self._live = ConnectMagics(self.session, self._locate)
        self._problem = problem
        own = SessionMagics(self.session, self._bridge, self._snapshots, self._location, problem)
        self._verbs: dict[str, Callable[[list[str]], object]] = {
            "status": own.status,
            "config": own.config,
            "doctor": own.doctor,
            "snapshot": self._snapshots.snapshot,
            "restore": self._snapshots.restore,
            "connect": self._live.connect,
            "disconnect": self._live.disconnect,
            "share": self._live.share,
            "trust": own.trust,
            "flush": own.flush,
            "clear": own.clear,
            "bench": _bench,
        }
        self._undo: list[Callable[[], None]] = []
        self._line: LiveLine | None = None
        self._idle: IdleTime | None = None
        self._threads = weakref.WeakSet(threading.enumerate())
        """Threads of the kernel's own, and whatever else ran before we were loaded."""
        self._running: list[_Running] = []
        """The running cells, outermost first: more than one where a cell runs another."""
        self._unseen: CompileOptions | None = None
        """Options of a marked cell that runs silently, without IPython's events."""
        self._to_number = False
        self._scope = contextlib.ExitStack()
        """What the running cell has switched: device, defaults of torch.compile."""

    # --- life -----------------------------------------------------------------------------------

    def load(self) -> None:
        """Register magics, hooks and events, and start the session."""
        shell, manager = self.shell, self.shell.magics_manager
        self._listed(shell.input_transformers_cleanup, CellTransformer())
        self._listed(
            shell.ast_transformers,
            TargetCompiler(lambda: self.shell.user_ns, self._compile, self._cell_options),
        )
        self._undo.append(lambda: self.shell.user_ns.pop(HOOK, None))
        self._magic(manager, "line", "nbcache", self.nbcache)
        self._magic(manager, "cell", "compile_cached", self.compile_cached)
        self._completer()
        for event, handler in (("pre_run_cell", self._before), ("post_run_cell", self._after)):
            shell.events.register(event, handler)
            self._undo.append(partial(shell.events.unregister, event, handler))
        self._name_code()
        atexit.register(self._at_exit)
        self._undo.append(lambda: atexit.unregister(self._at_exit))
        self._join_cell()
        self._live.start()
        self.session.start()
        greeting = Greeting(self.session, self._bridge.foreseen)
        greeting.look()
        self._snapshots.start(lambda: self._greet(greeting))
        self._use_idle_time()
        if self._problem is not None:
            print("\n".join(self._problem.diagnostics()))
            print("  nbcache reports on this kernel's graphs, and keeps nothing for the next one")

    def _greet(self, greeting: Greeting) -> None:
        if self._problem is None and self.session.settings.report != "never":
            print(greeting.line(_GREETING_SECONDS))

    def unload(self) -> None:
        """Undo `load`, newest first, and store what is still to be stored."""
        while self._undo:
            self._undo.pop()()
        if self._line is not None:
            self._line.finish(None)
            self._line = None
        self._scope.close()
        self._snapshots.finish(_FLUSH_SECONDS)
        self.session.close(_FLUSH_SECONDS)

    def _listed(self, transformers: list[Any], transformer: Any) -> None:
        transformers.append(transformer)
        self._undo.append(lambda: transformers.remove(transformer) if transformer in transformers else None)

    def _magic(self, manager: Any, kind: str, name: str, function: Callable[..., Any]) -> None:
        before = manager.magics[kind].get(name)
        manager.register_function(function, magic_kind=kind, magic_name=name)

        def undo() -> None:
            if before is None:
                manager.magics[kind].pop(name, None)
            else:
                manager.magics[kind][name] = before

        self._undo.append(undo)

    def _completer(self) -> None:
        """Complete both magics' lines, and keep names of Python out of there."""

        @context_matcher()  # type: ignore[untyped-decorator]
        def nbcache_matcher(context: CompletionContext) -> SimpleMatcherResult:
            words = self._complete(context)
            if words is None:
                return {"completions": []}
            return {
                "completions": [SimpleCompletion(text=word, type="option") for word in words],
                "matched_fragment": context.token,
                "suppress": True,
            }

        self._listed(self.shell.Completer.custom_matchers, nbcache_matcher)

    def _complete(self, context: CompletionContext) -> list[str] | None:
        """Return what can stand at the cursor; None where that is on no line of ours."""
        line, symbol = context.text_until_cursor, context.token
        if context.cursor_line == 0 and line.startswith(f"{MAGIC} "):
            hidden = self.shell.user_ns_hidden
            names = [
                name
                for name, value in self.shell.user_ns.items()
                if not name.startswith("_") and name not in hidden and is_compilable(value)
            ]
            return compile_cell.complete(
                line,
                symbol,
                names=names,
                modes=compile_options.known_modes,
                options=compile_options.known_options,
                backends=compile_options.known_backends,
            )
        if not line.lstrip().startswith("%nbcache "):
            return None
        *words, word = line.split() if not line[-1].isspace() else (*line.split(), "")
        candidates = list(self._verbs) if len(words) == 1 else completions(words[1], words[2:], word)
        # The token may be a part of the word only, from its last `=` or `-` on.
        done = len(word) - len(symbol)
        return [candidate[done:] for candidate in candidates if candidate.startswith(word)]

    def _name_code(self) -> None:
        """Give cells' code names that are the same in every kernel."""
        compiler = self.shell.compile
        original = compiler.get_code_name

        def get_code_name(raw_code: str, transformed_code: str, number: int) -> str:
            if self._to_number:  # at `pre_run_cell` the shell's count is this cell's or the next one's
                self.session.begin_cell(Cell.of(raw_code, number))
                self._to_number = False
            debugger = getattr(getattr(self.shell, "kernel", None), "debugger", None)
            if getattr(debugger, "is_started", False):  # breakpoints are set under the kernel's own names
                return str(original(raw_code, transformed_code, number))
            name = _CODE_NAMES.format(sha256(raw_code.encode())[:16])
            self.session.report_log.name_code(name, Cell.of(raw_code, number))
            return name

        before = vars(compiler).get("get_code_name")
        compiler.get_code_name = get_code_name

        def undo() -> None:
            if before is None:
                vars(compiler).pop("get_code_name", None)
            else:
                compiler.get_code_name = before

        self._undo.append(undo)

    def _join_cell(self) -> None:
        """Take the cell that loads the extension for one that has begun: it may go on to compile."""
        frame = sys._getframe()
        while frame is not None and frame.f_code.co_name != "run_cell_async":
            frame = frame.f_back  # type: ignore[assignment]
        result = frame and frame.f_locals.get("result")
        if isinstance(result, ExecutionResult) and result.info is not None and not result.info.silent:
            self._running.append(_Running(result.info))
            self.session.begin_cell(Cell.of(result.info.raw_cell, result.execution_count))

    def _use_idle_time(self) -> None:
        """Prewarm between cells, on the kernel's own thread; a terminal's IPython has no such time."""
        loop = getattr(getattr(getattr(self.shell, "kernel", None), "io_loop", None), "asyncio_loop", None)
        if loop is None:
            return
        self._idle = IdleTime(loop, self._prewarm)
        self._undo.append(self._idle.end)
        if not self._running:
            self._idle.begin()

    def _prewarm(self) -> float | None:
        """Do one slice of prewarming; return the seconds until the next, None where a cell must run first."""
        if not self.session.settings.prewarm or self._running:
            return None
        if self._imported_elsewhere():
            return _SHORT_PAUSE
        wait = self.session.prewarm.step()
        return None if wait is Pause.CELL else _SHORT_PAUSE if wait is Pause.SHORT else 0.0

    def _imported_elsewhere(self) -> bool:
        """Tell whether a thread that a cell has started may be importing: two such imports may deadlock."""
        threads = (thread for thread in threading.enumerate() if thread not in self._threads)
        return any(thread.name.startswith(_USERS_THREADS) for thread in threads)

    def _user_has_torch(self) -> bool:
        """Tell whether a cell has imported torch, or made something of it."""
        names = []
        for value in list(self.shell.user_ns.values()):
            kind = type(value)
            names.append(kind.__module__)
            if kind is ModuleType:
                names.append(vars(value).get("__name__"))
            elif kind is FunctionType or issubclass(kind, type):
                names.append(value.__module__)
        return any(isinstance(name, str) and name.partition(".")[0] == "torch" for name in names)

    def _at_exit(self) -> None:
        self.session.prewarm.stop()
        self.session.flush(_FLUSH_SECONDS)
        self._snapshots.finish(_FLUSH_SECONDS)

    def _locate(self) -> str:
        return self._location().path

    def _location(self) -> Location:
        connection_file = None
        if getattr(self.shell, "kernel", None) is not None:
            with contextlib.suppress(Exception):  # it is only there in a kernel that has been started in full
                from ipykernel.connect import get_connection_file

                connection_file = get_connection_file()
        return locate(self.session.settings.notebook, self.shell.user_ns, os.environ, connection_file)

    # --- cells ----------------------------------------------------------------------------------

    def _before(self, info: Any) -> None:
        if self._idle is not None:
            self._idle.end()
        self._running.append(_Running(info))
        if len(self._running) > 1:  # a cell that another cell runs, by `%run` or `run_cell`
            return
        self._to_number = info.store_history
        self.session.begin_cell(Cell.of(info.raw_cell, None))
        if self.session.settings.live and self.session.settings.report != "never":
            self._line = LiveLine(self.session.activity)
            self._line.start()

    def _cell_options(self, chosen: CompileOptions) -> None:
        """Take in the options of a marked cell, just before it runs.

        Raises a UsageError, and nothing else: IPython would drop the transformer that calls this.
        """
        try:
            compile_cell.check(
                chosen,
                compile_options.known_options() if chosen.options else None,
                compile_options.known_modes() if chosen.mode else None,
                compile_options.known_backends() if chosen.backend else None,
            )
            if self._running:
                self._scope.enter_context(compile_options.default_device(chosen.device))
                self._scope.enter_context(compile_options.default_arguments(chosen.torch_arguments()))
        except UsageError:
            raise
        except Exception as error:  # torch is not there, or does not take the device
            raise compile_cell.usage_error(str(error).strip().splitlines()[0]) from error
        if not self._running:  # a silent execution: nothing tells when it ends
            self._unseen = chosen
            return
        self._running[-1].chosen = chosen
        self.session.save_cell(chosen.save)
        if self._line is None:
            return
        if chosen.quiet:
            self._line.finish(None)
            self._line = None
        else:
            self._line.reserve()

    def _compile(self, target: str, *value: Any) -> Any:
        """Compile a target: what a marked cell calls after each statement that binds one."""
        if not value:
            raise never_bound(target, self.shell.user_ns)
        if not is_compilable(value[0]):
            raise not_callable(target, value[0])
        chosen = self._running[-1].chosen if self._running else self._unseen
        return compile_options.compile_target(value[0], chosen.torch_arguments() if chosen else {})

    def _after(self, result: Any) -> None:
        infos = [each.info for each in self._running]
        if result is None or not any(info is result.info for info in infos):
            return  # a cell that began before we were loaded, or an empty one, which never begins
        while self._running[-1].info is not result.info:
            self._running.pop()
        chosen = self._running.pop().chosen
        if self._running:  # `%%capture` and `run_cell_magic` run a cell in a cell: its options count for both
            outer = self._running[-1]
            outer.chosen = outer.chosen or chosen
            return
        if self._idle is not None:
            self._idle.begin()
        self._scope.close()
        report = self.session.end_cell(name=chosen.name if chosen else None)
        if report.graphs and self.session.settings.autosnapshot:
            self._snapshots.autosnapshot()
        line, self._line = self._line, None
        shown = self._shown(report, chosen, succeeded=bool(result.success))
        if line is not None:
            line.finish(shown)
        elif shown is not None:
            _display(shown)  # type: ignore[no-untyped-call]
        error = _hit_required(report) if chosen is not None and chosen.require_hit else None
        if error is not None and result.success:
            result.error_in_exec = error
            self.shell.showtraceback((type(error), error, None))

    def _shown(
        self, report: CellReport, chosen: CompileOptions | None, *, succeeded: bool
    ) -> Rendered | None:
        setting = self.session.settings.report
        wanted = setting == "always" or (setting == "magic" and chosen is not None)
        if chosen is not None and chosen.quiet:
            wanted = False
        if not wanted:
            return render_notices(report) if report.notices else None
        if not report.graphs and not report.notices and chosen is None:
            return None
        why = self._why_not_stored(chosen)
        if not why and not succeeded:
            return render_report(report, why="though the cell raised")
        return render_report(report, stored=not why, why=why)

    def _why_not_stored(self, chosen: CompileOptions | None) -> str:
        """Return why nothing that the cell compiled is stored for the next kernel; empty where it is."""
        settings, store = self.session.settings, self.session.artifacts.store
        if chosen is not None and not chosen.save:
            return "--no-save"
        if not settings.save:
            return f"save=off ({settings.origin('save')})"
        if self._problem is not None:
            return "the local store cannot be used (%nbcache doctor)"
        return "the local store cannot be written to (%nbcache doctor)" if store.read_only else ""

    # --- magics ---------------------------------------------------------------------------------

    def compile_cached(self, line: str, cell: str) -> Any:
        """Run a marked cell where IPython was asked for the magic itself, as `run_cell_magic` does."""
        result = self.shell.run_cell(f"{MAGIC} {line}\n{cell}")
        result.raise_error()
        return result.result

    compile_cached.__doc__ = compile_cell.help_text()

    def nbcache(self, line: str = "") -> Any:
        """Show and steer the cache of compiled graphs.

        %nbcache, %nbcache status   the session, by cell and graph
        %nbcache status --json      the same as JSON
        %nbcache config             each setting, its value and where it comes from
        %nbcache config NAME=VALUE  change a setting for this kernel, nbcache's or one of torch's caches
        %nbcache doctor             check all that nbcache needs, and say what to do where it is not there
        %nbcache snapshot           write all that is stored of this notebook into a file beside it
        %nbcache snapshot FILE      the same into another file
        %nbcache snapshot URL#NAME  the same into a store: redis://host/0#team/gpt, s3://bucket/x#team/gpt
        %nbcache snapshot notebook  the same as an output of this cell, which is saved with the notebook
        %nbcache restore SOURCE     use a snapshot: a file, another notebook, a URL, URL#NAME in a store
        %nbcache connect URL        share what is compiled, live, with all who connect there
        %nbcache connect            say who has published what of this notebook
        %nbcache disconnect         share no more
        %nbcache share [NAME]       take a snapshot that others can restore, and print the line that they need
        %nbcache trust              trust who signed the snapshot that came with this notebook; else show your
                                    own fingerprint and whom you trust, as `trust list` does
        %nbcache trust add SIGNER   trust a fingerprint, or who signed a snapshot; `trust remove` ends it
        %nbcache flush              wait until all that was compiled is stored
        %nbcache clear              remove what is stored of this notebook alone
        %nbcache clear --all        remove all that is stored here, after asking; --yes does not ask
        %nbcache bench …            measure cold and restored starts; `%nbcache bench --help` says more
        """
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise UsageError(f"%nbcache: {str(error).lower()}. Usage: {USAGE}") from None
        command, arguments = (words[0], words[1:]) if words else ("status", [])
        if command.startswith("-"):
            command, arguments = "status", words
        if command not in self._verbs:
            hint = compile_cell.nearest(command, list(self._verbs)) or "."
            raise UsageError(f"%nbcache: there is no `{command}`{hint} Usage: {USAGE}")
        return self._verbs[command](arguments)


def _bench(arguments: list[str]) -> None:
    from nbcache.bench.command import run_in_notebook

    run_in_notebook(arguments)


def _open_store(settings: Settings) -> tuple[Store, StoreError | None]:
    """Return the local store, or one in memory and the reason why."""
    try:
        return DirectoryStore(settings.dir), None
    except StoreError as error:
        return MemoryStore("memory of this kernel"), error


def _hit_required(report: CellReport) -> HitRequired | None:
    missed = [graph for graph in report.graphs if graph.outcome is not Outcome.HIT]
    if not missed:
        return None
    listed = "".join(
        f"\n  {graph.function} {graph.compile_id} {graph.direction}: {graph.outcome}, {graph.reason or '–'}"
        for graph in missed
    )
    return HitRequired(
        f"--require-hit: {len(missed)} of {len(report.graphs)} graphs did not hit:{listed}",
        next_step="run the cell without --require-hit once, so that its graphs are stored",
    )
