"""`%nbcache status`, `config`, `doctor`, `flush` and `clear`: the session that runs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from IPython.core.error import UsageError
from IPython.display import display as _display

from nbcache.artifacts.manifests import Clearing
from nbcache.core import log
from nbcache.core.errors import ConfigError, StoreError
from nbcache.core.reports import CellReport
from nbcache.core.settings import Settings
from nbcache.core.text import counted, one_line, size
from nbcache.kernel.session import Session
from nbcache.launcher.forked import parent
from nbcache.snapshots.sources import beside
from nbcache.torch_bridge import TorchBridge, cache_settings
from nbcache.ui.display.graph import render_why
from nbcache.ui.display.render import Rendered
from nbcache.ui.display.reports import render_checks, render_settings, render_status
from nbcache.ui.display.rows import SettingRow, store_parts
from nbcache.ui.doctor import in_kernel
from nbcache.ui.doctor.places import store_figures
from nbcache.ui.ipython.snapshot_magics import ShareMagics, confirmed
from nbcache.ui.locate import Location
from nbcache.ui.terminal import signers
from nbcache.ui.terminal.shown import write
from nbcache.ui.verbs import takes, usage, words_of

__all__ = ["SessionMagics", "completions", "going_words", "only_json", "show"]

_WAIT_SECONDS = 60.0
"""How long `%nbcache flush` waits."""
_MOST_NAMED = 8
"""Functions that are named where the one asked for is none of them."""


class SessionMagics:
    """The verbs, for one session.

    `locate` finds the notebook; `problem` is why the session's store is in memory, None where it is not.
    """

    def __init__(
        self,
        session: Session,
        bridge: TorchBridge,
        snapshots: ShareMagics,
        locate: Callable[[], Location],
        problem: StoreError | None,
    ) -> None:
        self._session = session
        self._bridge = bridge
        self._snapshots = snapshots
        self._locate = locate
        self._problem = problem

    def status(self, arguments: list[str]) -> None:
        """Show the session, by cell and graph."""
        as_json = only_json("status", arguments)
        store = self._session.artifacts.store
        figures = []
        try:
            figures.append(store_figures(store, self._session.settings.max_bytes))
        except StoreError as error:
            self._session.notice(str(error))
        reports = self._session.reports
        told = {id(graph) for report in reports for graph in report.graphs}
        if outside := tuple(graph for graph in self._session.graphs if id(graph) not in told):
            reports.append(CellReport(None, outside, seconds=0.0))
        shared_client = self._session.shared_client
        shared = None if shared_client is None else shared_client.level.figures()
        show(render_status(reports, figures, self._session.prewarm, shared, parent()), as_json)

    def why(self, arguments: list[str]) -> None:
        """Say of the last cell's graphs, or of those that are named, why they missed and what to do."""
        names = [word for word in arguments if word != "--json"]
        if unknown := [word for word in names if word.startswith("-")] or names[1:]:
            raise UsageError(f"%nbcache why: `{unknown[0]}` is not understood. Usage: {usage('why')}")
        show(self.explained(*names), "--json" in arguments)

    def explained(self, *names: str) -> Rendered:
        """Return what `why` shows, of the last cell's graphs or of those of one name."""
        rows = self._session.why(*names)
        last = [report for report in self._session.reports if report.graphs or report.notices][-1:]
        said = [text for report in last for text in report.notices]
        remark = ""
        if names:  # a notice on a function begins with its name
            said = [text for text in self._session.notices if text.startswith(f"{names[0]} ")]
            if not rows and (known := dict.fromkeys(graph.function for graph in self._session.graphs)):
                shown = ", ".join(one_line(name, 40) for name in list(known)[-_MOST_NAMED:])
                remark = f"no graph is called `{one_line(names[0], 40)}`: this kernel has compiled {shown}"
        elif rows and said and not any(report.graphs for report in last):
            cell = rows[0].graph.cell
            of = cell.label if cell else "an earlier one"
            cell_now = last[0].cell
            which = cell_now.label if cell_now else "the last cell"
            remark = f"{which} compiled no graph; what follows is of {of}"
        return render_why(rows, said, remark)

    def config(self, arguments: list[str]) -> None:
        """Show each setting, or change some."""
        changes = [word for word in arguments if "=" in word]
        names = [word for word in arguments if "=" not in word]
        for name in names:
            if name in Settings.names():
                allowed = Settings.allowed(name)
                raise UsageError(f"%nbcache config: `{name}` needs a value, {name}=VALUE; it takes {allowed}")
        as_json = only_json("config", names)
        said = self.change(changes)
        if not changes or as_json:
            show(render_settings(*self.setting_rows()), as_json)
            return
        for line in said:
            write(f"nbcache: {line}")

    def change(self, changes: list[str]) -> list[str]:
        """Change settings, each given as NAME=VALUE; return what there is to know of torch's new values."""
        settings = self._session.settings
        of_torch: dict[str, str] = {}
        for change in changes:
            name, _, value = change.partition("=")
            if name == "dir":
                raise ConfigError(
                    "the folder of the local store is read when the extension loads",
                    where="%nbcache config",
                    next_step="set NBCACHE_DIR, then run `%unload_ext nbcache` and `%load_ext nbcache`",
                )
            if name in cache_settings.NAMES:
                of_torch[name] = value
                continue
            settings = settings.with_value(name, value, origin="%nbcache config", others=cache_settings.NAMES)
        for name, value in of_torch.items():
            self._bridge.switch_cache(name, value)
        self._session.configure(settings)
        log.show(settings.log)
        if not settings.prewarm:
            self._session.prewarm.stop()
        if any(change.startswith("notebook=") for change in changes):
            self._session.relocate()
            self._snapshots.look_again()
        if not of_torch:
            return []
        return [
            f"{each.name} is {each.value}: {each.note}"
            for each in self._bridge.cache_settings()
            if each.name in of_torch and each.note
        ]

    def setting_rows(self) -> tuple[list[SettingRow], list[SettingRow]]:
        """Return nbcache's settings, and those of torch's caches."""
        settings = self._session.settings
        rows = [
            SettingRow(name, settings.text(name), settings.origin(name), settings.help(name))
            for name in settings.names()
            if name != "notebook"
        ]
        found = self._locate()
        rows.append(SettingRow("notebook", found.path, found.found_by, settings.help("notebook")))
        torch_rows = [
            SettingRow(each.name, each.value, each.origin, each.help, each.note)
            for each in self._bridge.cache_settings()
        ]
        return rows, torch_rows

    def doctor(self, arguments: list[str]) -> None:
        """Check all that nbcache needs."""
        as_json = only_json("doctor", arguments)
        show(self.checked(), as_json)

    def checked(self) -> Rendered:
        """Return what `doctor` finds."""
        found = in_kernel(self._session, self._bridge, self._snapshots.sharing, self._locate, self._problem)
        return render_checks(found)

    def trust(self, arguments: list[str]) -> None:
        """Trust who signed what came along; show, choose and name whom to trust, as the command does."""
        words, name, sure = _trust_words(arguments)
        action, signer = (words[0], words[1:]) if words else ("", [])
        if not action:
            if self._snapshots.trust_strangers(sure=sure, name=name):
                return
            write("nbcache: nothing came along whose signer is not trusted\n")
            action = "list"

        settings = self._session.settings
        if action == "list" and not signer:
            write(signers.signers(settings).text)
        elif action in ("add", "remove", "show", "ignore") and len(signer) == 1:
            if action == "add":
                lines = self.trust_signer(signer[0], name, None if sure else _ask_which)
            elif action == "ignore":
                lines = self._snapshots.ignore(signer[0])
            else:
                lines = signers.trust(action, signer[0], name, settings).lines
            write("nbcache: " + "\n".join(lines))
        else:
            raise UsageError(usage("trust"))

    def trust_signer(self, signer: str, name: str, ask: signers.Ask | None = None) -> list[str]:
        """Trust a signer from now on, use what came along of them, and return the lines that say so."""
        done = signers.trust("add", signer, name, self._session.settings, ask)
        self._snapshots.trusted(done.data["fingerprint"], done.data["name"])
        return done.lines

    def flush(self, arguments: list[str]) -> None:
        """Wait until all that was compiled is stored, and shared."""
        _nothing("flush", arguments)
        began = time.perf_counter()
        whole = self._session.flush(_WAIT_SECONDS)
        shared_client, seconds = self._session.shared_client, f"{time.perf_counter() - began:.2f} s"
        if whole:
            write(f"nbcache: all is stored{' and shared' if shared_client else ''} ({seconds})")
        else:
            what = f"shared with {shared_client.level.name}" if shared_client else "stored"
            failure = shared_client.level.failure if shared_client else None
            waiting = shared_client.level.figures().waiting if shared_client else 0
            why = f": {size(waiting)} wait to be written" if waiting else ""
            why = f": off for now: {one_line(failure.what)}" if failure else why
            write(f"nbcache: not all is {what} yet ({seconds}){why}")

    def clear(self, arguments: list[str]) -> None:
        """Remove what is stored of this notebook; with --all everything, once the user or --yes says so."""
        if arguments not in ([], ["--all"], ["--all", "--yes"], ["--yes", "--all"]):
            raise UsageError(
                "%nbcache clear removes this notebook's; %nbcache clear --all [--yes], everything here"
            )
        if arguments:
            self._clear_all(sure=len(arguments) > 1)
            return
        only = self._session.clearing()
        going = going_words(only)
        write(f"nbcache: removing {going}" if only.manifests else f"nbcache: {going}")
        for line in self.remove(only)[1:]:
            write(line)

    def _clear_all(self, *, sure: bool) -> None:
        said = self.everything_words()
        if not sure and not confirmed(f"nbcache: {said}, is removed. Go on? [y/N] ", "%nbcache clear --all"):
            write("nbcache: nothing was removed")
            return
        first, *rest = self.remove()
        write("\n".join([f"nbcache: {first}", *rest]))

    def everything_words(self) -> str:
        """Return what `clear --all` removes, in words."""
        name, store = self._session.artifacts.store.name, self._session.artifacts
        self._session.flush(_WAIT_SECONDS)
        notebooks = {manifest.notebook for manifest in store.manifests().values()} - {""}
        parts = store_parts(store_figures(store.store, self._session.settings.max_bytes))
        return f"all of the {name}, {parts[2]} of {counted(len(notebooks), 'notebook')} and more"

    def remove(self, only: Clearing | None = None) -> list[str]:
        """Remove all that is stored, or `only` what is one notebook's; return what went, and what stays."""
        name = self._session.artifacts.store.name
        self._snapshots.forget()
        removed = self._session.clear(only)
        what = counted(removed, "entry", "entries") if only is None else counted(removed, "artifact")
        return [f"removed {what} from the {name}", *self._what_stays()]

    def _what_stays(self) -> list[str]:
        """Name what brings removed graphs back: snapshots that came along, and the shared store."""
        lines = []
        notebook, shared_client = self._session.notebook(timeout=0.0), self._session.shared_client
        if notebook and (near := beside(Path(notebook))).exists():
            lines.append(f"  {one_line(near.name)} stays, and is restored when the extension is loaded again")
        if shared_client:
            lines.append(f"  what is shared stays on {shared_client.level.name}")
        return lines


def _ask_which(lines: list[str], question: str) -> bool:
    write("nbcache: " + "\n".join(lines))
    return confirmed(question, "%nbcache trust add", "name one by the fingerprint")


def going_words(only: Clearing) -> str:
    """Return in words what goes with a notebook, and what stays since others use it as well."""
    whose = one_line(os.path.basename(only.notebook)) or "kernels that cannot tell their notebook"
    if not only.manifests:
        return f"nothing is stored of {whose}"
    going = f"{counted(only.graphs, 'graph')}, {counted(only.artifacts, 'artifact')}"
    kept = f"; kept: {counted(only.kept, 'artifact')} that others use as well" if only.kept else ""
    return f"{going} of {whose}{kept}. torch's folder is emptied for all notebooks"


_SWITCH = ("on", "off")


def completions(verb: str, before: list[str], word: str) -> list[str]:
    """Return what can stand where `word` stands, in a line `%nbcache verb *before word`."""
    if verb == "config" and "=" in word:
        name = word.partition("=")[0]
        of_torch = _SWITCH if name in cache_settings.NAMES and name != cache_settings.FOLDER else ()
        return [f"{name}={value}" for value in Settings.choices(name) or of_torch]
    candidates = words_of(verb)
    if verb == "config":
        candidates += [f"{name}=" for name in (*Settings.names(), *cache_settings.NAMES)]
    if takes(verb, "SOURCE") or takes(verb, "FILE") or (verb == "trust" and before == ["add"]):
        candidates += _files(word)
    return candidates


def _files(word: str) -> list[str]:
    """Return the folders, snapshots and notebooks whose path begins with `word`, which it keeps as it is."""
    typed, _, start = word.rpartition("/")
    folder = Path(f"{typed}/" if "/" in word else ".").expanduser()
    found = []
    with suppress(OSError, RuntimeError):  # a folder that is not there, or of somebody who is nobody here
        for entry in sorted(os.scandir(folder), key=lambda each: each.name):
            fits = entry.name.startswith(start) and not (entry.name.startswith(".") and not start)
            if not fits or any(character.isspace() for character in entry.name):
                continue
            path = f"{typed}/{entry.name}" if "/" in word else entry.name
            if entry.is_dir():
                found.append(f"{path}/")
            elif entry.name.endswith((".nbcache", ".ipynb")):
                found.append(path)
    return found


def _trust_words(arguments: list[str]) -> tuple[list[str], str, bool]:
    """Return the words that are no options, the name that is given, and whether nobody is to be asked."""
    words, rest = [], list(arguments)
    name, sure = "", False
    while rest:
        word = rest.pop(0)
        if word == "--yes":
            sure = True
        elif word == "--name" and rest:
            name = rest.pop(0)
        elif word.startswith("-"):
            raise UsageError(usage("trust"))
        else:
            words.append(word)
    return words, name, sure


def show(rendered: Rendered, as_json: bool) -> None:
    """Display it, or print its data."""
    if as_json:
        print(json.dumps(rendered.data, indent=2))
    else:
        _display(rendered)  # type: ignore[no-untyped-call]


def only_json(verb: str, arguments: Iterable[str]) -> bool:
    """Return whether `--json` is given; UsageError for anything else."""
    if unknown := [word for word in arguments if word != "--json"]:
        raise UsageError(f"%nbcache {verb}: `{unknown[0]}` is not understood. Usage: {usage(verb)}")
    return "--json" in arguments


def _nothing(verb: str, arguments: list[str]) -> None:
    if arguments:
        raise UsageError(f"%nbcache {verb} takes nothing more. Usage: {usage(verb)}")
