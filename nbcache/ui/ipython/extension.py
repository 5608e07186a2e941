"""The IPython extension: builds the session of a shell, and connects it with IPython's events and magics."""

from __future__ import annotations

import atexit
import concurrent.futures.thread
import contextlib
import os
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from functools import partial
from types import FrameType, FunctionType, ModuleType
from typing import Any

from IPython.core import completer

from nbcache.core import log
from nbcache.core.errors import NbcacheError, StoreError
from nbcache.core.installed import is_installed
from nbcache.core.settings import Settings
from nbcache.core.text import DOT
from nbcache.core.threads import start_thread
from nbcache.kernel.prewarming import Pause
from nbcache.kernel.session import Session
from nbcache.launcher.forked import parent
from nbcache.parts import make_bridge
from nbcache.storage.backends.base import Store
from nbcache.storage.backends.directory import DirectoryStore
from nbcache.storage.backends.memory import MemoryStore
from nbcache.ui.ipython.cells import Cells, IdleTime
from nbcache.ui.ipython.compile_cell import HOOK, CellTransformer, TargetCompiler
from nbcache.ui.ipython.kernel_verbs import KernelVerbs
from nbcache.ui.ipython.magics import Magics
from nbcache.ui.locate import Location, locate
from nbcache.ui.terminal.shown import write

_FLUSH_SECONDS = 5.0
_USERS_THREADS = ("Thread-", "ThreadPoolExecutor-", "asyncio_")
"""Beginnings of the names that Python gives to threads without a name."""
_WAITING_WORKER = concurrent.futures.thread._worker.__code__
_GREETING_SECONDS = 0.1
"""The longest wait of `load` for the greeting, after the search for snapshots."""
_SHORT_PAUSE = 0.1
"""Seconds after which prewarming checks again whether a thread or process has finished."""
_IMPORT_SECONDS = 1.0
"""The longest wait of `load` for torch, in a kernel that was forked with torch imported."""

_extension: Extension | None = None


def load(shell: Any) -> None:
    """Load the extension into `shell`, unless it is loaded already."""
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
    """Unload the extension, if it is loaded."""
    global _extension
    if _extension is not None:
        _extension.unload()
        _extension = None


def current_session() -> Session:
    """Return the session of the loaded extension, or raise NbcacheError."""
    if _extension is None:
        raise NbcacheError(
            "nbcache is not loaded here", next_step="run `%load_ext nbcache`, or load it in IPython"
        )
    return _extension.session


class Extension:
    """Everything that `%load_ext nbcache` adds to one shell, and `%unload_ext nbcache` removes."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        settings = Settings.from_env(os.environ)
        store: Store
        problem = None
        try:
            store = DirectoryStore(settings.dir)
        except StoreError as error:
            store, problem = MemoryStore("memory of this kernel"), error
        self._bridge = make_bridge(self._user_has_torch)
        self.session = Session(settings, self._bridge, store, locate_notebook=lambda: self._location().path)
        if isinstance(store, DirectoryStore) and store.was_emptied:
            self.session.notice(
                f"{store.path} was open to others, who may have put code there: it was emptied",
                "store",
            )
        self._problem = problem
        self._cells = Cells(shell, self.session, problem)
        self._verbs = KernelVerbs(self.session, self._bridge, self._cells, self._location, problem)
        self._cells.autosnapshot = self._verbs.autosnapshot
        self._magics = Magics(shell, self.session, self._verbs)
        self._undo = contextlib.ExitStack()
        self._threads = weakref.WeakSet(threading.enumerate())
        """The kernel's own threads, and all others that ran before the extension was loaded."""

    def load(self) -> None:
        log.show(self.session.settings.log)
        shell = self.shell
        compiler = TargetCompiler(lambda: shell.user_ns, self._cells.compile, self._cells.apply_options)
        self._append(shell.input_transformers_cleanup, CellTransformer())
        self._append(shell.ast_transformers, compiler)
        self._undo.callback(lambda: shell.user_ns.pop(HOOK, None))
        self._magic("line", "nbcache", self._magics.nbcache)
        self._magic("cell", "compile_cached", self._magics.compile_cached)
        self._completer()
        for event, handler in (("pre_run_cell", self._begin_cell), ("post_run_cell", self._end_cell)):
            shell.events.register(event, handler)
            self._undo.callback(shell.events.unregister, event, handler)
        self._name_code()
        atexit.register(self._at_exit)
        self._undo.callback(atexit.unregister, self._at_exit)
        self._cells.join()
        self._verbs.connect_at_load()
        self.session.start()
        parts = ["nbcache: loaded, imports done ahead" if parent() else "nbcache: loaded"]
        looking = start_thread(partial(self._look, parts), "greet")  # if it cannot start, the line is shorter
        self._verbs.start(lambda: self._greet(looking, parts))
        self._use_idle_time()
        if parent():
            self._import_torch()
        if self._problem is not None:
            write("\n".join(self._problem.diagnostics()))
            write("  nbcache reports on this kernel's graphs, and stores none for the next one")

    def _begin_cell(self, info: Any) -> None:
        self._cells.before(info)
        self._magics.draw()

    def _end_cell(self, result: Any) -> None:
        try:
            self._cells.after(result)
        finally:
            if not self._cells.are_running:
                while self._cells.waiting:
                    self._cells.waiting.pop(0)()
                self._magics.draw(facts=True)

    def _look(self, parts: list[str]) -> None:
        """Add the greeting's words on stored graphs; a failing store is reported elsewhere."""

        def look() -> None:
            with contextlib.suppress(NbcacheError):
                parts.extend(self._verbs.greeting())

        self.session.attempt("reading the notebook's stored graphs", look)

    def _greet(self, looking: threading.Thread | None, parts: list[str]) -> None:
        if self._problem is None and self.session.settings.report != "never":
            if looking is not None:
                looking.join(_GREETING_SECONDS)
            write(DOT.join(parts))

    def unload(self) -> None:
        """Undo the steps of `load` in reverse, and finish pending writes to the store."""
        self._undo.close()
        self._magics.close()
        self._cells.close()
        self._verbs.finish(_FLUSH_SECONDS)
        self.session.close(_FLUSH_SECONDS)
        log.show("off")

    def _append(self, transformers: list[Any], transformer: Any) -> None:
        transformers.append(transformer)
        self._undo.callback(lambda: transformers.remove(transformer) if transformer in transformers else None)

    def _put_back(self, names: dict[str, Any], name: str) -> None:
        """Let `unload` restore the present value of a name."""
        old = names.get(name)
        self._undo.callback(lambda: names.pop(name, None) if old is None else names.update({name: old}))

    def _magic(self, kind: str, name: str, function: Callable[..., Any]) -> None:
        manager = self.shell.magics_manager
        self._put_back(manager.magics[kind], name)  # the user's own magic of this name
        manager.register_function(function, magic_kind=kind, magic_name=name)

    def _completer(self) -> None:
        """Complete both magics' lines, and suppress IPython's own completions there."""

        @completer.context_matcher()  # type: ignore[untyped-decorator]
        def nbcache_matcher(context: completer.CompletionContext) -> completer.SimpleMatcherResult:
            words = self._magics.complete(context)
            if words is None:
                return {"completions": []}
            return {
                "completions": [completer.SimpleCompletion(text=word, type="option") for word in words],
                "matched_fragment": context.token,
                "suppress": True,
            }

        self._append(self.shell.Completer.custom_matchers, nbcache_matcher)

    def _name_code(self) -> None:
        """Give cells' code file names that are the same in every kernel."""
        compiler = self.shell.compile
        original = compiler.get_code_name

        def get_code_name(raw_code: str, transformed_code: str, number: int) -> str:
            self._cells.number(raw_code, number)
            debugger = getattr(getattr(self.shell, "kernel", None), "debugger", None)
            if getattr(debugger, "is_started", False):  # breakpoints refer to the kernel's own names
                return str(original(raw_code, transformed_code, number))
            return self._cells.name(raw_code, number)

        self._put_back(vars(compiler), "get_code_name")
        compiler.get_code_name = get_code_name

    def _use_idle_time(self) -> None:
        """Prewarm between cells, on the kernel's main thread; IPython in a terminal has no idle time."""
        loop = getattr(getattr(getattr(self.shell, "kernel", None), "io_loop", None), "asyncio_loop", None)
        if loop is None:
            return
        idle = self._cells.idle = IdleTime(loop, self._prewarm)
        self._undo.callback(idle.end)
        if not self._cells.are_running:
            idle.begin()

    def _import_torch(self) -> None:
        """Begin prewarming with the import of torch, quick in a fork, so that the store is read meanwhile."""
        until = time.monotonic() + _IMPORT_SECONDS
        if self._imported_elsewhere():
            return
        while self.session.settings.prewarm and "torch" not in sys.modules and time.monotonic() < until:
            wait = self.session.prewarm.step()
            if wait is Pause.CELL:
                return
            if wait is Pause.SHORT:
                time.sleep(0.001)

    def _prewarm(self) -> float | None:
        """Do one slice of prewarming; return the seconds until the next, None if a cell must run first."""
        if not self.session.settings.prewarm or self._cells.are_running:
            return None
        if self._imported_elsewhere():
            return _SHORT_PAUSE
        wait = self.session.prewarm.step()
        return None if wait is Pause.CELL else _SHORT_PAUSE if wait is Pause.SHORT else 0.0

    def _imported_elsewhere(self) -> bool:
        """Return whether a thread of the user may be importing: two such imports may deadlock."""
        frames = sys._current_frames()
        return any(
            _may_import(thread, frames.get(thread.ident or 0))
            for thread in threading.enumerate()
            if thread not in self._threads
        )

    def _user_has_torch(self) -> bool:
        """Return whether the user's namespace has torch, or an object that torch defines."""
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
        self._verbs.finish(_FLUSH_SECONDS)

    def _location(self) -> Location:
        connection_file = None
        if getattr(self.shell, "kernel", None) is not None:
            with contextlib.suppress(Exception):  # only a fully started kernel has one
                from ipykernel.connect import get_connection_file

                connection_file = get_connection_file()
        return locate(self.session.settings.notebook, self.shell.user_ns, os.environ, connection_file)


def _may_import(thread: threading.Thread, frame: FrameType | None) -> bool:
    """Return whether a thread runs user code, judging by its name and stack, and is no idle pool worker."""
    if frame is None or frame.f_code is _WAITING_WORKER or thread.name.startswith("nbcache-"):
        return False
    codes = (caller.f_code for caller, _ in traceback.walk_stack(frame))
    return thread.name.startswith(_USERS_THREADS) or any(not is_installed(c.co_filename) for c in codes)
