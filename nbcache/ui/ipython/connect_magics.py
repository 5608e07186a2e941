"""`%nbcache connect`, `disconnect` and `share`: the live shared level."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from IPython.core.error import UsageError

from nbcache.artifacts.provenance import Judge
from nbcache.core.errors import ConfigError, NbcacheError, StoreError
from nbcache.core.model import Environment
from nbcache.core.settings import Settings, torchs_url
from nbcache.core.text import DOT, ago, counted, duration, one_line
from nbcache.core.trust import Keyring, spelled
from nbcache.kernel.session import Session
from nbcache.kernel.shared_client import SharedClient
from nbcache.shared.level import Publication, SharedLevel
from nbcache.shared.signing import Signer
from nbcache.snapshots.sources import beside, origin
from nbcache.stores.base import Store
from nbcache.stores.open import open_shared
from nbcache.ui.display.snapshots import fit_words
from nbcache.ui.terminal.shown import write

__all__ = ["ConnectMagics", "publication_lines", "shared_name"]

_MOST_SHOWN = 5
_MOST_MAKERS = 3


class ConnectMagics:
    """The verbs, for one session."""

    def __init__(self, session: Session, locate: Callable[[], str]) -> None:
        """`locate` returns the notebook's path, empty where it is not to be found."""
        self._session = session
        self._locate = locate
        session.connector = self.connect_to
        self._used: Settings | None = None
        """The settings by which this kernel has connected; those of the session may have changed since."""
        self._handed_over: list[str] = []
        """What a colleague pastes to have what was shared last."""

    def start(self) -> None:
        """Connect to the shared level that the environment names; what stops that becomes a notice."""
        settings = self._session.settings
        if settings.shared_url:
            try:
                self._connect(settings, open_shared(settings))
            except NbcacheError as error:
                named = settings.origin("shared_url")
                self._session.notice(f"no shared level ({named}): {error.with_next_step()}")

    def connect(self, arguments: list[str]) -> None:
        """Connect to the store at a URL, by default the one that the settings name, and say who is there."""
        if len(arguments) > 1 or any(word.startswith("-") for word in arguments):
            raise UsageError(
                "%nbcache connect takes one URL, as redis://host, s3://bucket/folder or a folder"
            )
        settings = self._session.settings
        shared_client = self._session.shared_client
        if (
            not arguments
            and shared_client is not None
            and _shared(settings) == _shared(self._used or settings)
        ):
            self._tell(shared_client)
        else:
            self._tell(self.connect_to(arguments[0] if arguments else ""))

    def connect_to(self, url: str) -> SharedClient:
        """Connect to the store at `url`, without one to that of the settings, or of torch's variables."""
        settings = self._session.settings
        if url:
            settings = settings.with_value("shared_url", url, origin="%nbcache connect")
        elif not settings.shared_url:
            torchs, variable = torchs_url(os.environ)
            if variable not in os.environ:
                raise ConfigError(
                    "there is no URL to connect to",
                    where="%nbcache connect",
                    next_step="name one, as in %nbcache connect redis://host, or set NBCACHE_SHARED_URL",
                )
            settings = settings.with_value("shared_url", torchs, origin=f"environment, {variable}")
        store = open_shared(settings)
        try:
            store.get("probe")  # who asks for it wants to know
        except StoreError:
            store.close()
            raise
        return self._connect(settings, store)

    def disconnect(self, arguments: list[str]) -> None:
        """Leave the shared level."""
        if arguments:
            raise UsageError("%nbcache disconnect takes nothing more")
        shared_client = self._session.shared_client
        if shared_client is None:
            write("nbcache: not connected to a shared level")
            return
        self._session.disconnect()
        write(f"nbcache: disconnected from {shared_client.level.name}")

    def share(self, arguments: list[str]) -> None:
        """Take a snapshot where others find it, and print the one line that a colleague pastes.

        In the shared store, under a NAME, by default the notebook's; without one, in the file beside it.
        """
        said = self.hand_over(shared_name(arguments))
        if "--json" in arguments:
            print(json.dumps({"said": said[0], "restore": said[1], "trust": said[3]}, indent=2))
        else:
            write("nbcache: " + "\n\n".join(said))

    def hand_over(self, given: str = "") -> list[str]:
        """Do what `share` does, under the name `given`; return what to say, and what to paste, in turn."""
        session = self._session
        name = given or Path(self._locate()).stem
        if session.shared_client is None:
            if given:
                raise ConfigError(
                    "a NAME is one in a shared store, and this kernel is connected to none",
                    where="%nbcache share",
                    next_step="connect first: %nbcache connect redis://host, or share without a NAME",
                )
            taken = session.snapshot()
            source = Path(taken.where).name
            how = f"gets the file {source}, and pastes"
        elif not name:
            raise ConfigError(
                "nbcache cannot find out which notebook this is, so not what to call it",
                where="%nbcache share",
                next_step="give it a name: %nbcache share NAME",
            )
        else:
            url = (self._used or session.settings).shared_url
            taken = session.snapshot(f"{url}#{name}")
            source = taken.where
            how = "pastes, with a user and password in the URL where it needs them"
        graphs, artifacts = counted(taken.graphs, "graph"), counted(taken.artifacts, "artifact")
        self._handed_over = self._lines_to_paste(f"A colleague {how}:", source)
        first, *rest = self._handed_over
        return [f"{one_line(taken.where)} holds {graphs}, {artifacts}. {first}", *rest]

    def to_paste(self) -> list[str]:
        """Return what a colleague pastes to have what was shared last, else the file beside the notebook."""
        if self._handed_over:
            return self._handed_over
        notebook = self._locate()
        near = beside(Path(notebook)) if notebook else None
        if near is None or not near.is_file():
            return []
        return self._lines_to_paste(
            f"A colleague gets the file {one_line(near.name)}, and pastes:", near.name
        )

    def _lines_to_paste(self, first: str, source: str) -> list[str]:
        settings = self._session.settings
        signer, user = Keyring(settings.trust_dir).own() or "", origin("", settings).user
        named = f" --name {_as_word(user)}" if user else ""
        return [
            first,
            f"%nbcache restore {_as_word(source)}",
            "and, once, trusts your key:",
            f"%nbcache trust add {spelled(signer)}{named}",
        ]

    def _tell(self, shared_client: SharedClient) -> None:
        first, *lines = self.who_is_there(shared_client)
        write(f"nbcache: {first}")
        for line in lines:
            write(f"  {line}")

    def who_is_there(self, shared_client: SharedClient) -> list[str]:
        """Return where this kernel is connected to, and a line for each who has published."""
        shared_client.level.ask()
        lines = self.people(shared_client)
        if (failure := shared_client.level.failure) is not None:
            lines += [f"off for now: {one_line(failure.what)}", f"next: {one_line(failure.next_step or '')}"]
        nobody = ["nobody whom you trust has published anything of this notebook there"]
        return [f"connected to {shared_client.level.name}", *(lines or nobody)]

    def people(self, shared_client: SharedClient) -> list[str]:
        """Return a line for each who has published something of this notebook."""
        session = self._session
        return publication_lines(shared_client.publications(), session.environment, session.judge)

    def _connect(self, settings: Settings, store: Store) -> SharedClient:
        session = self._session
        told = origin("", settings)
        signer = Signer(
            lambda: Keyring(session.settings.trust_dir),
            lambda: session.settings.trust,
            told.user,
            told.host,
        )
        shared = SharedLevel(store, signer, wait_seconds=settings.shared_timeout, say=session.notice)
        session.configure(settings)
        self._used = settings
        return session.join(shared)


def _shared(settings: Settings) -> tuple[object, ...]:
    """Return what of the settings says how to connect."""
    return settings.shared_url, settings.shared_timeout, settings.shared_connect_timeout


def _as_word(source: str) -> str:
    """Return a place as a line magic takes it: quoted, where it would be read as several words."""
    return shlex.quote(source) if re.search(r"[\s'\"\\]", source) else source


def shared_name(arguments: list[str]) -> str:
    """Return the name in the arguments of `share`; empty where there is none."""
    names = [word for word in arguments if word != "--json"]
    if len(names) > 1 or any(word.startswith("-") for word in names):
        raise UsageError("%nbcache share takes one NAME, or nothing, and --json")
    return names[0] if names else ""


def publication_lines(publications: list[Publication], here: Environment | None, judge: Judge) -> list[str]:
    """Return a line for each of the newest: who has compiled and published what, when, and on what machine.

    What one has that another compiled is said to be that other's. Each says whether it fits `here`.
    """
    names = {
        each.found.signer: judge.introduce(each.found.signer, each.user, each.host) for each in publications
    }
    lines = []
    for each in publications[:_MOST_SHOWN]:
        graphs, own_makers = each.manifest.graphs, ("", each.found.signer)
        own = [graph for graph in graphs if graph.maker in own_makers]
        others = Counter(graph.maker for graph in graphs if graph.maker not in own_makers)
        parts = [names[each.found.signer]]
        if own or not others:
            parts += [counted(len(own), "graph"), f"saves about {duration(sum(g.seconds for g in own))}"]
        parts += [
            f"has {counted(count, 'graph')} of {names.get(maker) or judge.introduce(maker)}"
            for maker, count in others.most_common(_MOST_MAKERS)
        ]
        parts += [ago(time.time() - each.published), fit_words([each.manifest], here)]
        lines.append(DOT.join(filter(None, parts)))
    if (more := len(publications) - _MOST_SHOWN) > 0:
        lines.append(f"and {more} more")
    return lines
