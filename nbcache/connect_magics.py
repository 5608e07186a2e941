"""`%nbcache connect`, `disconnect` and `share`: the live shared level."""

from __future__ import annotations

import os
import time

from IPython.core.error import UsageError

from nbcache.errors import ConfigError, NbcacheError, StoreError
from nbcache.kernel_session import Session
from nbcache.notebook.wording import DOT, counted, duration, one_line
from nbcache.settings import Settings, torchs_url
from nbcache.shared import Peer, Publication, SharedLevel
from nbcache.sharing import origin
from nbcache.stores.base import Store
from nbcache.stores.bounded import BoundedStore
from nbcache.stores.filesystem import FilesystemStore
from nbcache.stores.url import open_store
from nbcache.trust import Keyring, short

__all__ = ["ConnectMagics", "open_shared", "publication_lines"]

_MOST_SHOWN = 5


def open_shared(settings: Settings) -> Store:
    """Return the store that `settings.shared_url` names, each of its operations bounded in time.

    ConfigError where the URL cannot be used. Nothing is asked of it yet.
    """
    timeout = settings.shared_timeout
    store = open_store(settings.shared_url, connect_timeout=settings.shared_connect_timeout, timeout=timeout)
    return BoundedStore(store, timeout) if isinstance(store, FilesystemStore) else store


class ConnectMagics:
    """The verbs, for one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def start(self) -> None:
        """Connect to the shared level that the environment names; what stops that becomes a notice."""
        if self._session.settings.shared_url:
            try:
                self._connect(self._session.settings)
            except NbcacheError as error:
                self._session.notice(f"no shared level: {error}")

    def connect(self, arguments: list[str]) -> None:
        """Connect to the store at a URL, by default the one that the settings name."""
        if len(arguments) > 1 or any(word.startswith("-") for word in arguments):
            raise UsageError(
                "%nbcache connect takes one URL, as redis://host, s3://bucket/folder or a folder"
            )
        settings = self._session.settings
        if arguments:
            settings = settings.with_value("shared_url", arguments[0], origin="%nbcache connect")
        elif not settings.shared_url:
            url, variable = torchs_url(os.environ)
            if variable not in os.environ:
                raise ConfigError(
                    "there is no URL to connect to",
                    where="%nbcache connect",
                    next_step="name one, as in %nbcache connect redis://host, or set NBCACHE_SHARED_URL",
                )
            settings = settings.with_value("shared_url", url, origin=f"environment, {variable}")
        store = open_shared(settings)
        try:
            store.get("live/probe")  # who asks for it wants to know
        except StoreError:
            store.close()
            raise
        store.close()
        shared = self._connect(settings)
        print(f"nbcache: connected to {shared.name}")
        exchange = self._session.exchange
        for line in publication_lines([] if exchange is None else exchange.publications()):
            print(f"  {line}")

    def disconnect(self, arguments: list[str]) -> None:
        """Leave the shared level."""
        if arguments:
            raise UsageError("%nbcache disconnect takes nothing more")
        exchange = self._session.exchange
        if exchange is None:
            print("nbcache: not connected to a shared level")
            return
        self._session.disconnect()
        print(f"nbcache: disconnected from {exchange.shared.name}")

    def _connect(self, settings: Settings) -> SharedLevel:
        session = self._session
        store = open_shared(settings)
        told = origin("", settings)
        peer = Peer(
            lambda: Keyring(session.settings.trust_dir),
            lambda: session.settings.trust,
            told.user,
            told.host,
        )
        shared = SharedLevel(store, peer, wait_seconds=settings.shared_timeout, say=session.notice)
        session.configure(settings)
        session.connect(shared)
        return shared


def publication_lines(publications: list[Publication]) -> list[str]:
    """Return a line for each of the newest: who published what, when, and on what machine."""
    lines = []
    for each in publications[:_MOST_SHOWN]:
        who = "@".join(filter(None, (each.user, each.host))) or short(each.found.signer)
        ago = max(0.0, time.time() - each.published)
        graphs = counted(len(each.manifest.graphs), "graph")
        saves = sum(graph.seconds for graph in each.manifest.graphs)
        lines.append(
            DOT.join([one_line(who, 60), graphs, f"saves about {duration(saves)}", f"{duration(ago)} ago"])
        )
    if (more := len(publications) - _MOST_SHOWN) > 0:
        lines.append(f"and {more} more")
    return lines
