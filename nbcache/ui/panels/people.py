"""The sections of a panel on others: who shares what, whom to trust, and the snapshot that is handed on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import ipywidgets as widgets

from nbcache.core.text import counted
from nbcache.ui.panels import pages
from nbcache.ui.panels.controls import Section, button, html, once_typed, row, show, text, with_magic
from nbcache.ui.panels.values import Facts, Now, Stranger
from nbcache.ui.panels.verbs import Verbs

__all__ = ["People", "Snapshots"]

_MOST_STRANGERS = 5


class People:
    """Who shares what, connecting, and signers who are not trusted."""

    def __init__(
        self,
        act: Callable[[Callable[[], Sequence[str]]], None],
        verbs: Verbs,
        trust: Callable[[str, str], None],
        *,
        is_open: bool,
    ) -> None:
        self._act = act
        self._verbs = verbs
        self._trust = trust
        self._lines = html()
        self._url = text("280px", "redis://host, s3://bucket/folder, a folder")
        start = partial(once_typed, self._connect)
        connect = button("connect", "%nbcache connect URL", "share live with all there", start)
        self._connecting = row([self._url, with_magic(connect, "%nbcache connect URL")])
        off = partial(act, verbs.disconnect)
        disconnect = button("disconnect", "%nbcache disconnect", "share no more", off)
        self._connected = with_magic(disconnect, "%nbcache disconnect")
        self._strangers: list[_StrangerRow] = []
        self._list = widgets.VBox([])
        self._more = html()
        body = [self._lines, self._connecting, self._connected, self._list, self._more]
        self.section = Section("PEOPLE", body, is_open)

    def draw(self, facts: Facts, now: Now) -> None:
        """Show who is there."""
        self.section.tell(pages.people_words(facts, now))
        self._lines.value = pages.people_html(facts, now)
        self._url.disabled = bool(now.running)  # or a password would stand in it until the cell ends
        show(self._connecting, not now.shared)
        show(self._connected, bool(now.shared))
        shown = facts.strangers[:_MOST_STRANGERS]
        if len(self._strangers) < len(shown):
            self._strangers += [
                _StrangerRow(self._trust, self._ignore) for _ in shown[len(self._strangers) :]
            ]
            self._list.children = [each.box for each in self._strangers]
        for i, each in enumerate(self._strangers):
            each.draw(shown[i] if i < len(shown) else None)
        more = len(facts.strangers) - len(shown)
        said = f"and {counted(more, 'more signer')} (%nbcache trust asks about each)"
        self._more.value = pages.said_html([said]) if more else ""
        show(self._more, bool(more))

    def _ignore(self, fingerprint: str) -> None:
        self._act(partial(self._verbs.ignore, fingerprint))

    def _connect(self) -> None:
        url, self._url.value = self._url.value.strip(), ""  # which may hold a password: it stays nowhere
        self._act(partial(self._verbs.connect, url))


class _StrangerRow:
    """Somebody who is not trusted, and a name to call them."""

    def __init__(self, trust: Callable[[str, str], None], ignore: Callable[[str], None]) -> None:
        self._who = html()
        self._fingerprint = ""
        self._name = text("180px", "what you call them")
        choose = partial(once_typed, partial(self._chosen, trust))
        made = button("trust…", "%nbcache trust", "show what trusting means", choose)
        no = button(
            "ignore",
            "%nbcache trust ignore FINGERPRINT",
            "show them no more in this kernel",
            lambda: ignore(self._fingerprint),
        )
        line = row(
            [
                self._name,
                with_magic(made, "%nbcache trust add FINGERPRINT --name NAME"),
                with_magic(no, "%nbcache trust ignore FINGERPRINT"),
            ]
        )
        self.box = widgets.VBox([self._who, line])

    def draw(self, stranger: Stranger | None) -> None:
        """Show somebody, or nobody."""
        show(self.box, stranger is not None)
        if stranger is None:
            self._who.value = self._fingerprint = ""
            return
        self._who.value = pages.stranger_html(stranger)
        if stranger.fingerprint != self._fingerprint:
            self._fingerprint = stranger.fingerprint
            self._name.value = ""  # never a name that a stranger chose

    def _chosen(self, trust: Callable[[str, str], None]) -> None:
        trust(self._fingerprint, self._name.value.strip())


class Snapshots:
    """The snapshot beside the notebook, those that came along, and what a colleague pastes."""

    def __init__(
        self, act: Callable[[Callable[[], Sequence[str]]], None], verbs: Verbs, *, is_open: bool
    ) -> None:
        self._lines = html()
        buttons = [
            with_magic(button(label, magic, what, partial(act, verb)), magic)
            for label, magic, what, verb in (
                ("update", "%nbcache snapshot", "write it beside the notebook", verbs.snapshot),
                ("restore", "%nbcache restore", "use what the notebook carries", verbs.restore),
                ("share", "%nbcache share", "have the line for a colleague", verbs.share),
                ("verify", "%nbcache verify", "check lengths, digests, signatures, contents", verbs.verify),
                ("attach", "%nbcache attach", "say how it gets into the notebook", verbs.attach),
            )
        ]
        self.section = Section("SNAPSHOT", [self._lines, row(buttons)], is_open)

    def draw(self, facts: Facts) -> None:
        """Show what there is."""
        self.section.tell(pages.snapshot_words(facts))
        self._lines.value = pages.snapshots_html(facts)
