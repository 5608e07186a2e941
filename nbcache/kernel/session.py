"""A kernel's session: it records compiles, serves torch's lookups from the stores, and reports both.

Disks are read and written on the session's own threads, or while torch waits for an artifact. Nothing in
here fails a user's cell. A store that fails is unused for a while, and the next report has one notice.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from nbcache.core.errors import ConfigError, NbcacheError
from nbcache.core.key import sha256
from nbcache.core.log import logger
from nbcache.core.model import Artifact, Environment, SnapshotRestored, SnapshotTaken
from nbcache.core.reports import Activity, Cell, CellReport, GraphRecord
from nbcache.core.settings import Policy, Settings
from nbcache.core.text import printable
from nbcache.core.threads import ForkSafeEvent, ForkSafeLock, countdown, start_thread
from nbcache.kernel.events import AutogradLookup, Event, GraphLookup, SpanEnded
from nbcache.kernel.explain.components import Components
from nbcache.kernel.explain.timeline import with_estimates
from nbcache.kernel.explain.why import Why, explain
from nbcache.kernel.notebook_cache import NotebookCache
from nbcache.kernel.prewarming import Prewarming, Steps
from nbcache.kernel.program import Program
from nbcache.kernel.reasons import DAMAGED, Miss, Reason, why_missed
from nbcache.kernel.shared_client import SharedClient
from nbcache.kernel.tracker import Tracker
from nbcache.sharing.live.level import SharedLevel
from nbcache.sharing.provenance import Judge
from nbcache.sharing.trust import Keyring
from nbcache.storage.backends.base import Store
from nbcache.storage.manifests import Clearing, clearing

if TYPE_CHECKING:
    from nbcache.kernel.snapshots import Sharing

T = TypeVar("T")

_MOST_NOTICES = 100
_MOST_REPORTS = 1000
_MOST_NAMES = 10_000
_LONGEST_NOTICE = 2000
_MORE = f"more than {_MOST_NOTICES} notices: the rest is not shown (%nbcache doctor has these)"
_FLUSH_SECONDS = 5.0
_COMPILE = "inductor_compile"
"""torch's span in which a graph is compiled and stored."""


class CompilerBridge(Protocol):
    """The compiler as a session needs it; `torch_bridge` implements it for torch.

    An installed bridge calls the session's `emit` for each event of the compiler, and `find` before the
    compiler looks an artifact up. It calls the cache's `set_environment` when the compiler is imported,
    and `record` for each artifact that the compiler makes or hits.
    """

    def install(self, session: Session) -> None:
        """Begin to watch and serve the compiler, at once or when it is imported."""

    def uninstall(self) -> None:
        """Restore every patched name, flag, hook and environment variable."""

    def configure(self) -> None:
        """Apply the session's present settings to compiles; ConfigError if that is impossible."""

    def clear(self) -> None:
        """Empty the compiler's cache folder, if nbcache made it."""

    def disown(self) -> None:
        """From now on, treat artifacts in the compiler's folder as foreign; may be called often."""

    def prewarm(self) -> Steps:
        """Return the work to do before the first compile, in slices for the kernel's own thread."""


class Session:
    """Composes store, tracker and bridge for one kernel. Public methods are safe to call from any thread."""

    def __init__(
        self,
        settings: Settings,
        bridge: CompilerBridge,
        store: Store,
        *,
        locate_notebook: Callable[[], str] = lambda: "",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.settings = settings
        self.bridge = bridge
        self.report_log = ReportLog()
        self.notice = self.report_log.notice
        self.judge = Judge(lambda: Keyring(self.settings.trust_dir), lambda: self.settings.trust)
        self.cache = NotebookCache(store, self)
        self.artifacts = self.cache.artifacts
        self.prewarm = Prewarming(bridge.prewarm, self.report_fault)
        self.overhead_seconds = 0.0
        """Seconds that recording and following compiles cost the threads that compile."""
        self._overhead_lock = ForkSafeLock()
        self.explaining_seconds = 0.0
        """The part of these seconds for storing components of keys, and for reasons of misses."""
        self.locator = NotebookLocator(locate_notebook, self.notice)
        self._clock = clock
        self._tracker = Tracker()
        self.cell: Cell | None = None
        self.program = Program()
        self._cell_began = 0.0
        self._idle_since: float | None = clock()
        self.saving = True
        self._attempting = threading.local()
        self.unnoticed = Unnoticed()
        """Compiles that no report shows; their artifacts are stored all the same."""
        self.shared_client: SharedClient | None = None
        """None while this kernel is connected to no shared level."""
        self.connector: Callable[[str], object] | None = None
        """The function behind `connect`; the extension sets it."""
        self.snapshots: Sharing | None = None
        """The object behind `snapshot` and `restore`; the extension sets it."""
        self.cell_ended: list[Callable[[], None]] = []

    # --- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        self.locator.start()
        self.bridge.install(self)

    def configure(self, settings: Settings) -> None:
        """Use other settings from now on; ConfigError, without any change, if that is impossible."""
        previous, self.settings = self.settings, settings
        if (settings.portable, settings.trust) == (previous.portable, previous.trust):
            return
        if settings.portable != previous.portable:
            self.cache.flush(_FLUSH_SECONDS)  # earlier artifacts belong to another environment
        try:
            self.bridge.configure()
        except ConfigError:
            self.settings = previous
            raise

    def close(self, timeout: float = _FLUSH_SECONDS) -> None:
        """Uninstall the bridge and wait up to `timeout` seconds for pending writes."""
        self.prewarm.stop()
        self.cache.stop_reading()
        self.bridge.uninstall()
        left = countdown(timeout)
        self.flush(timeout)
        self.disconnect(left() or 0.0)
        self.cache.close()

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all recorded artifacts are stored and shared; False after `timeout` seconds."""
        left, shared_client = countdown(timeout), self.shared_client
        return self.cache.flush(timeout) and (shared_client is None or shared_client.flush(left()))

    def clearing(self) -> Clearing:
        """Return the artifacts that `clear` would remove for this notebook alone; may raise StoreError."""
        self.cache.flush()
        return clearing(self.artifacts.manifests(), self.notebook(timeout=_FLUSH_SECONDS))

    def clear(self, only: Clearing | None = None) -> int:
        """Remove all stored artifacts, or `only` those of one notebook, and the compiler's cache folders if
        nbcache made them.

        Returns the number of removed entries, or artifacts of the notebook. StoreError if the store fails.
        """
        self.cache.flush()
        if only is None:
            removed = self.artifacts.clear()
        else:
            removed = self.artifacts.drop(only.manifests, only.refs)
            self.artifacts.history.clear(only.notebook)
        self.bridge.clear()
        self.cache.forget()
        return removed

    # --- the shared level -----------------------------------------------------------------------

    def connect(self, url: str = "") -> None:
        """Share live through the store at `url`, or the one in the settings; ConfigError or StoreError."""
        _require_extension(self.connector)(url)

    def join(self, shared: SharedLevel) -> SharedClient:
        """Make `shared` part of every lookup, and publish this notebook's artifacts there."""
        self.disconnect()
        shared_client = SharedClient(shared, self)
        self.shared_client = shared_client
        if self.environment is not None:
            self.cache.read_in_background(partial(shared_client.begin, self.environment))
        return shared_client

    def disconnect(self, timeout: float = _FLUSH_SECONDS) -> None:
        """Leave the shared level, once all is published or `timeout` seconds have passed."""
        if self.shared_client is None:
            return
        left = countdown(timeout)
        self.cache.flush(timeout)  # which queues artifacts to publish
        shared_client, self.shared_client = self.shared_client, None
        shared_client.close(left() or 0.0)

    @property
    def shares(self) -> bool:
        return self.shared_client is not None

    # --- the user's view ------------------------------------------------------------------------

    @property
    def graphs(self) -> list[GraphRecord]:
        """The graphs since the extension was loaded, oldest first; of thousands the last 1,000 or more."""
        return self._tracker.records

    def forget_graphs(self, begin: int) -> None:
        """Leave the graphs from this index on out of `graphs` and reports; what is stored stays."""
        self._tracker.forget(begin)

    @property
    def reports(self) -> list[CellReport]:
        """The reports of the last 1,000 cells that have run, oldest first."""
        return self.report_log.reports

    def report(self, cell: int | Cell | None = None) -> CellReport | None:
        """Return the report of a cell, by execution count or `Cell`; without one, of the last that ran."""
        return self.report_log.report(cell)

    @property
    def notices(self) -> list[str]:
        return self.report_log.notices

    def activity(self) -> Activity | None:
        if (activity := self._tracker.activity(self._clock())) is None:
            return None
        cell = self.cell.digest if self.cell else ""
        running = (activity.function, cell)
        stored = any((graph.function, graph.cell) == running for graph in self.cache.summaries())
        history = self.cache.history.runs()
        activity = with_estimates(activity, history, cell, self.environment, stored=stored)
        if (shared_client := self.shared_client) is None or (holder := shared_client.level.holder) is None:
            return activity
        by = shared_client.level.introduce(holder.signer, holder.user, holder.host)
        return replace(activity, compiled_by=by, compiled_since=holder.since)

    def snapshot(self, dest: str | os.PathLike[str] | None = None) -> SnapshotTaken:
        """Add the artifacts that the notebook's present cells use to the snapshot at `dest`.

        `dest` is a file, or `URL#NAME` in a store; by default the file beside the notebook. A Path is always
        a file. Raises NbcacheError if it cannot be taken or written.
        """
        return _require_extension(self.snapshots).snapshot(dest)

    def restore(self, src: str | os.PathLike[str] | None = None) -> list[SnapshotRestored]:
        """Use the snapshots at `src`: a file, a notebook, a URL, or `URL#NAME` in a store; by default this
        notebook's. A Path is always a file. Raises NbcacheError if no part of them may be used, or fits.
        """
        return _require_extension(self.snapshots).restore_from(src)

    # --- cells ----------------------------------------------------------------------------------

    def begin_cell(self, cell: Cell) -> None:
        """Attribute compiles to `cell` from now on; called again if more becomes known of the cell."""
        self.cell = cell
        self._cell_began = self._clock()
        self._idle_since = None
        self.saving = True
        self.prewarm.begin_cell()
        if (shared_client := self.shared_client) is not None:
            shared_client.level.begin_cell()
        self._tracker.begin_cell(cell)

    def end_cell(self, name: str | None = None, *, unfinished: bool = False) -> CellReport:
        """Report on the cell, called `name` by the user, and store its artifacts; `unfinished`: it raised."""
        graphs, marks = self._tracker.end_cell(), []
        trust, shared = self.settings.trust, self.shared_client
        if graphs and trust is not Policy.STRICT:  # after each cell, unlike notices
            marks.append(f"trust={trust.value}: snapshots of untrusted signers may run")
        if graphs and shared and (why := shared.level.why_off) and not self.report_log.will_say(why):
            marks.append(f"{shared.level.name} is off for now: {why}")
        report = self.report_log.add(self.cell, graphs, self._clock() - self._cell_began, marks, name)
        self.cell = None
        self._idle_since = self._clock()
        for hook in self.cell_ended:
            self.attempt("ending a cell", hook)
        self.cache.save_manifest(graphs, unfinished=unfinished)
        self.saving = True
        return report

    def idle_seconds(self) -> float:
        return 0.0 if self._idle_since is None else self._clock() - self._idle_since

    def notebook(self, timeout: float) -> str:
        """Return the notebook's identity, or an empty text if it is unknown after `timeout` seconds."""
        return self.locator.notebook(timeout)

    @property
    def environment(self) -> Environment | None:
        return self.cache.environment

    # --- calls from the bridge ------------------------------------------------------------------

    def attempt(self, task: str, action: Callable[[], T]) -> T | None:
        """Return the result of `action`; if it raises, give a notice and return None."""
        outermost = not getattr(self._attempting, "now", False)
        self._attempting.now = True
        began = self._clock()
        try:
            return action()
        except Exception as error:
            self.report_fault(task, error)
            return None
        finally:
            if outermost:
                self._attempting.now = False
                if not self.unnoticed.is_here():
                    with self._overhead_lock:
                        self.overhead_seconds += self._clock() - began

    def emit(self, event: Event) -> None:
        shared_client = self.shared_client
        if shared_client is not None and isinstance(event, SpanEnded) and event.name == _COMPILE:
            shared_client.finish_compile(event.thread)
        if self.unnoticed.hides(event):
            return
        if isinstance(event, GraphLookup | AutogradLookup):
            logger.debug("torch looked up a graph: %s", event)
        self._tracker.handle(event)

    def find(self, type: str, key: str) -> Sequence[Artifact]:
        """Return the artifacts under torch's `key` in levels beyond torch's own folder, newest first.

        torch is about to look `key` up: the bridge writes them to where torch looks, and calls
        `mark_restored`. The shared level is asked only if all nearer levels miss.
        """
        return self.cache.find(type, key) or self.find_shared(type, key)

    def find_shared(self, type: str, key: str) -> Sequence[Artifact]:
        environment, shared_client = self.environment, self.shared_client
        if environment is None or shared_client is None or self.cache.is_given_up(type, key):
            return ()
        if self.unnoticed.is_here():
            return ()  # prewarming between cells must not wait
        artifacts = shared_client.find(environment, type, key)
        logger.debug("looked up %s %s in %s: %d found", type, key, shared_client.level.name, len(artifacts))
        return artifacts

    def wait_for_other_kernel(self, key: str, tried: Iterable[bytes] = ()) -> Sequence[Artifact]:
        """Return the graph that another kernel is compiling, unless it was `tried`; empty without one."""
        environment, shared_client = self.environment, self.shared_client
        if environment is None or shared_client is None or not (self.saving and self.settings.save):
            return ()
        digests = frozenset(map(sha256, tried))
        return shared_client.wait_for_other_kernel(environment, key, self.function(), digests)

    def function(self) -> str:
        return self._tracker.function_on(threading.get_ident())

    def miss_reason(
        self, key: str, threads: int = 0, *, backward: bool = False, components: Components | None = None
    ) -> Reason:
        """Return the reason of a miss under `key`; `components` are the key's."""
        if self.cache.is_damaged(key):
            return Reason(DAMAGED)
        if self.environment is None:
            return Reason("nbcache stores and restores nothing in this kernel, as a notice explains")
        incomplete = self.cache.is_given_up("inductor", key)
        miss = Miss(key, self.function(), self.cell, threads, backward, incomplete, components)
        return why_missed(miss, self.cache.summaries(), self.graphs, self.cache.unusable_graphs())

    def why(self, graph: str | None = None) -> list[Why]:
        """Explain the graphs of a function, or of a compile id `0/1`; by default of the last cell."""
        records = self.graphs
        if graph is not None:
            return explain([one for one in records if graph in (one.compile_id, one.function)], records)
        of_cells = (report.graphs for report in reversed(self.reports) if report.graphs)
        return explain(next(of_cells, records), records)

    def met_others(self) -> None:
        """From now on, treat artifacts in the compiler's folder as foreign."""
        self.attempt("recording who compiled an artifact", self.bridge.disown)

    def reject(self, type: str, key: str, error: BaseException) -> None:
        """Note that the compiler has rejected an artifact that `find` returned."""
        logger.info("%s %s was not taken", type, key, exc_info=error)
        self.notice(f"a stored {type} could not be used and is compiled again: {error}", "damaged")

    # --- faults ---------------------------------------------------------------------------------

    def report_fault(self, task: str, error: BaseException) -> None:
        """Give a notice that `task` failed, and ask the user to report an unexpected error."""
        logger.info("%s failed", task, exc_info=error)
        if isinstance(error, NbcacheError):
            self.notice(f"{task} failed: {error}", type(error).__name__)
        else:  # a bug in nbcache fails no cell, but is shown
            self.notice(f"{task} failed unexpectedly, please report it: {error!r}", "fault")


def _require_extension(verbs: T | None) -> T:
    if verbs is None:
        raise NbcacheError("this session belongs to no notebook", next_step="run `%load_ext nbcache`")
    return verbs


class Unnoticed:
    """Hides the events of one thread at a time, and those of other threads on the same compiles."""

    def __init__(self) -> None:
        self._thread: int | None = None
        self._compile_ids: set[str] = set()

    @contextlib.contextmanager
    def on_this_thread(self) -> Iterator[None]:
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            self._thread = None
            self._compile_ids.clear()

    def is_here(self) -> bool:
        return self._thread == threading.get_ident()

    def hides(self, event: Event) -> bool:
        if self._thread is None:
            return False
        is_here = event.thread == self._thread
        if is_here and event.compile_id is not None:
            self._compile_ids.add(event.compile_id)
        return is_here or event.compile_id in self._compile_ids


class NotebookLocator:
    """Finds the notebook: `locate` returns its identity, or an empty text; `say` shows notices."""

    def __init__(self, locate: Callable[[], str], say: Callable[[str, str], None]) -> None:
        self._locate = locate
        self._say = say
        self._found = ""
        self._known = ForkSafeEvent()

    def start(self) -> None:
        self._known.clear()
        if start_thread(self._find, "locate") is None:
            self._find()

    def notebook(self, timeout: float) -> str:
        self._known.wait(timeout)
        return self._found

    def _find(self) -> None:
        try:
            self._found = self._locate()
        except Exception as error:  # finding the notebook asks servers and files of every kind
            self._say(f"nbcache could not find out which notebook this is: {error!r}", "which-notebook")
        finally:
            self._known.set()


class ReportLog:
    """Keeps reports, notices, and the cell of each source's file name. Safe to call from any thread."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._reports: deque[CellReport] = deque(maxlen=_MOST_REPORTS)
        self._fresh: list[str] = []
        self._noticed: dict[str, None] = {}
        self._held: dict[int, list[tuple[str, str]]] = {}
        """Thread → its notices that `holding` collects."""
        self._code: dict[str, Cell] = {}

    @property
    def reports(self) -> list[CellReport]:
        with self._lock:
            return list(self._reports)

    @property
    def notices(self) -> list[str]:
        with self._lock:
            return list(self._noticed)

    def report(self, cell: int | Cell | None) -> CellReport | None:
        for report in reversed(self.reports):
            if cell is None or cell in (report.cell, report.cell and report.cell.execution_count):
                return report
        return None

    def notice(self, text: str, slug: str) -> None:
        """Show `text` once, on one line, under the next report; docs/troubleshooting.md explains `slug`."""
        with self._lock:
            if (collected := self._held.get(threading.get_ident())) is not None:
                collected.append((text, slug))
                return
            text = f"{_line(text)} [{slug}]"
            logger.info("notice: %s", text)
            if len(self._noticed) >= _MOST_NOTICES and text not in self._noticed:
                text = _MORE
            if text not in self._noticed:
                self._noticed[text] = None
                self._fresh.append(text)

    @contextlib.contextmanager
    def holding(self) -> Iterator[list[tuple[str, str]]]:
        """Collect this thread's notices, each with its slug, instead of showing them; must not be nested."""
        collected: list[tuple[str, str]] = []
        self._held[threading.get_ident()] = collected
        try:
            yield collected
        finally:
            del self._held[threading.get_ident()]

    def will_say(self, text: str) -> bool:
        with self._lock:
            return any(_line(text) in notice for notice in self._fresh)

    def add(
        self,
        cell: Cell | None,
        graphs: tuple[GraphRecord, ...],
        seconds: float,
        marks: Sequence[str],
        name: str | None,
    ) -> CellReport:
        """Add a cell's report, with the notices since the last one and `marks`, which may be repeated."""
        with self._lock:
            report = CellReport(cell, graphs, seconds, (*self._fresh, *map(_line, marks)), name)
            self._fresh.clear()
            self._reports.append(report)
            return report

    def name_code(self, filename: str, cell: Cell) -> None:
        if len(self._code) >= _MOST_NAMES:
            del self._code[next(iter(self._code))]
        self._code[filename.rpartition("/")[2]] = cell

    def code_cell(self, filename: str) -> Cell | None:
        """Return the cell whose source was compiled under `filename`, by the name without its folder."""
        return self._code.get(filename.rpartition("/")[2])


def _line(text: str) -> str:
    """Return `text` as one line of bounded length, without control characters: it may quote others."""
    cut = "…" if len(text) > _LONGEST_NOTICE else ""
    return printable(" ".join(text[:_LONGEST_NOTICE].split())) + cut
