"""`%nbcache status`, `config`, `doctor`, `flush` and `clear`: the session that runs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable

from IPython.core.error import UsageError
from IPython.display import display as _display

from nbcache.doctor import in_kernel, store_figures
from nbcache.errors import ConfigError, StoreError
from nbcache.kernel_session import Session
from nbcache.model import CellReport
from nbcache.notebook.locate import Location
from nbcache.notebook.render import (
    Rendered,
    SettingRow,
    render_checks,
    render_settings,
    render_status,
)
from nbcache.share_magics import ShareMagics
from nbcache.torch_bridge import TorchBridge, cache_settings

__all__ = ["USAGE", "SessionMagics"]

_WAIT_SECONDS = 60.0
"""How long `%nbcache flush` waits."""
USAGE = (
    "%nbcache [status [--json] | config [NAME=VALUE …] [--json] | doctor [--json] | "
    "snapshot [FILE | URL#NAME | notebook] | restore [SOURCE] | connect [URL] | disconnect | "
    "share [NAME] | trust [--yes] | clear | flush | bench …]"
)


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
        as_json = _only_json("status", arguments)
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
        exchange = self._session.exchange
        shared = None if exchange is None else exchange.shared.figures()
        _show(render_status(reports, figures, self._session.prewarm, shared), as_json)

    def config(self, arguments: list[str]) -> None:
        """Show each setting, or change some."""
        changes = [word for word in arguments if "=" in word]
        as_json = _only_json("config", [word for word in arguments if "=" not in word])
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
        if not settings.prewarm:
            self._session.prewarm.stop()
        if any(change.startswith("notebook=") for change in changes):
            self._session.relocate()
            self._snapshots.look_again()
        if not changes or as_json:
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
            _show(render_settings(rows, torch_rows), as_json)
            return
        for each in self._bridge.cache_settings():
            if each.name in of_torch and each.note:
                print(f"nbcache: {each.name} is {each.value}: {each.note}")

    def doctor(self, arguments: list[str]) -> None:
        """Check all that nbcache needs."""
        as_json = _only_json("doctor", arguments)
        found = in_kernel(self._session, self._bridge, self._snapshots.sharing, self._locate, self._problem)
        _show(render_checks(found), as_json)

    def flush(self, arguments: list[str]) -> None:
        """Wait until all that was compiled is stored, and shared."""
        _nothing("flush", arguments)
        began = time.perf_counter()
        whole = self._session.flush(_WAIT_SECONDS)
        exchange, seconds = self._session.exchange, f"{time.perf_counter() - began:.2f} s"
        if whole:
            print(f"nbcache: all is stored{' and shared' if exchange else ''} ({seconds})")
        else:
            what = f"shared with {exchange.shared.name}" if exchange else "stored"
            failure = exchange.shared.failure if exchange else None
            why = f": off for now: {failure.what}" if failure else ""
            print(f"nbcache: not all is {what} yet ({seconds}){why}")

    def clear(self, arguments: list[str]) -> None:
        """Remove all that is stored here."""
        _nothing("clear", arguments)
        self._snapshots.forget()
        removed = self._session.clear()
        exchange = self._session.exchange
        stays = f"; what is shared stays on {exchange.shared.name}" if exchange else ""
        print(f"nbcache: removed {removed} entries from the {self._session.artifacts.store.name}{stays}")


def _show(rendered: Rendered, as_json: bool) -> None:
    if as_json:
        print(json.dumps(rendered.data, indent=2))
    else:
        _display(rendered)  # type: ignore[no-untyped-call]


def _only_json(command: str, arguments: Iterable[str]) -> bool:
    unknown = [word for word in arguments if word != "--json"]
    if unknown:
        raise UsageError(f"%nbcache {command}: `{unknown[0]}` is not understood. Usage: {USAGE}")
    return "--json" in arguments


def _nothing(command: str, arguments: list[str]) -> None:
    if arguments:
        raise UsageError(f"%nbcache {command} takes nothing more. Usage: {USAGE}")
