"""The sections of a panel that list things and change them: graphs, settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import ipywidgets as widgets

from nbcache.core.model import Outcome
from nbcache.core.reports import GraphRecord
from nbcache.core.settings import Settings
from nbcache.core.text import one_line
from nbcache.core.trust import Policy
from nbcache.torch_bridge import cache_settings
from nbcache.ui.display.graph import detail_html, differences_html
from nbcache.ui.panels import pages
from nbcache.ui.panels.controls import INDENT, Section, button, caret, html, once_typed, row, show, text
from nbcache.ui.panels.values import PAGE, Facts, Now, Order, graph_page
from nbcache.ui.panels.verbs import Verbs

__all__ = ["Graphs", "SettingsForm"]

_EVERY = ("all outcomes", "")
"""Label and value of the filter that all graphs pass."""
_SECRET = "shared_url"
"""The setting that may hold a password: it is changed by connecting."""
_FIXED = ("dir", _SECRET)
"""Settings that are not changed here: the folder is read when the extension loads."""
_SWITCH = ("on", "off")
_DIFF = "46px"
"""How wide the button is that each row has room for."""
_TRUST_OFF = (
    "With trust=off, what anybody has compiled runs as you, with all your rights, signed or not, "
    "for as long as this kernel runs."
)


class Graphs:
    """A page of graphs; each opens to all that is known of it, its guards and code."""

    def __init__(self, verbs: Verbs, ask: Callable[[], None], *, is_open: bool) -> None:
        self._verbs = verbs
        self._ask = ask
        self._page = 0
        self._opened: set[int] = set()
        """Places of the graphs that are open, among all of this kernel."""
        self._compared: set[int] = set()
        """Places of those of which is shown what differs from the nearest stored one."""
        self._shown: list[int] = []
        self._drawn: tuple[object, ...] = ()
        self._is_offering = False
        self._filter = widgets.Dropdown(options=[_EVERY], layout={"width": "150px"}, tooltip="outcome")
        self._order = widgets.Dropdown(
            options=[each.value for each in Order], layout={"width": "170px"}, tooltip="order"
        )
        for each in (self._filter, self._order):
            each.observe(self._changed, "value")
        self._back = button("", "", "newer graphs", partial(self._turn, -1), icon="chevron-left")
        self._on = button("", "", "older graphs", partial(self._turn, 1), icon="chevron-right")
        self._place = html()
        self._paging = row([self._back, self._place, self._on])
        self._controls = row([self._filter, self._order, self._paging])
        self._headers = html(pages.graph_headers_html())
        self._headers.layout.margin = f"0 calc({_DIFF} + 6px) 0 {INDENT}"
        self._rows: list[_GraphRow] = []
        """As many as were needed so far."""
        self._list = widgets.VBox([])
        self.section = Section("GRAPHS", [self._controls, self._headers, self._list], is_open)

    def draw(self, now: Now, *, anew: bool = False) -> None:
        """Show the page that is looked at; where it is shown already, only `anew`."""
        looked_at = (
            len(now.graphs),
            self._filter.value,
            self._order.value,
            self._page,
            frozenset(self._opened),
            frozenset(self._compared),
        )
        if looked_at == self._drawn and not anew:
            return
        self._drawn = looked_at
        chosen = str(self._filter.value)
        outcome = Outcome(chosen) if chosen in {*Outcome} else None
        page = graph_page(now.graphs, outcome, Order(self._order.value), self._page)
        self._page = page.page
        self._offer(page.counts)
        self.section.tell(pages.graphs_words(now.graphs))
        first = page.page * PAGE
        self._place.value = f"{first + 1} to {first + len(page.rows)} of {page.found}"
        show(self._paging, page.pages > 1)
        show(self._controls, len(now.graphs) > 1)
        show(self._headers, bool(page.rows))
        self._back.disabled, self._on.disabled = page.page == 0, page.page == page.pages - 1
        self._shown = [place for place, _ in page.rows]
        if len(self._rows) < len(page.rows):
            self._rows += [
                _GraphRow(partial(self._toggle, self._opened, i), partial(self._toggle, self._compared, i))
                for i in range(len(self._rows), len(page.rows))
            ]
            self._list.children = [each.box for each in self._rows]
        for i, each in enumerate(self._rows):
            if i >= len(page.rows):
                each.hide()
                continue
            place, graph = page.rows[i]
            each.draw(
                graph,
                pages.cell_html(page, i, now.graphs),
                self._detail(graph) if place in self._opened else "",
                pages.fitting(differences_html(self._verbs.explain(graph)))
                if place in self._compared
                else "",
            )

    def _detail(self, graph: GraphRecord) -> str:
        return pages.fitting(detail_html(self._verbs.explain(graph), self._verbs.contents(graph)))

    def _offer(self, counts: Mapping[Outcome, int]) -> None:
        """Have the filter say how many graphs there are of each outcome; what is chosen stays chosen."""
        chosen = self._filter.value
        offered = [(f"{each} ({n})", each.value) for each, n in counts.items() if n or each.value == chosen]
        options = (_EVERY, *offered)
        if self._filter.options == options:
            return
        self._is_offering = True  # with new options, the first is chosen
        try:
            with self._filter.hold_sync():
                self._filter.options = options
                self._filter.value = chosen
        finally:
            self._is_offering = False

    def _changed(self, change: Any) -> None:
        if not self._is_offering:
            self._page = 0
            self._ask()

    def _turn(self, by: int) -> None:
        self._page += by
        self._ask()

    def _toggle(self, places: set[int], i: int) -> None:
        if i < len(self._shown):
            places ^= {self._shown[i]}
            self._ask()


class _GraphRow:
    """One row, which opens, and shows what differs from the nearest stored graph."""

    def __init__(self, toggle: Callable[[], None], compare: Callable[[], None]) -> None:
        self._toggle = caret(toggle)
        self._diff = button("diff", "", "", compare)
        self._diff.layout.height = "22px"
        self._diff.layout.width = _DIFF
        self._diff.layout.margin = "0 2px"
        self._above, self._line, self._differs, self._detail = html(), html(), html(), html()
        self._line.layout.flex = "1 1 auto"
        for each in (self._differs, self._detail):
            each.layout.margin = f"0 2px 0 {INDENT}"
        line = widgets.HBox([self._toggle, self._line, self._diff], layout={"align_items": "flex-start"})
        self.box = widgets.VBox([self._above, line, self._differs, self._detail])

    def hide(self) -> None:
        show(self.box, False)

    def draw(self, graph: GraphRecord, cell: str, detail: str, differs: str) -> None:
        """Show a graph, with all that is known of it and what differs, where that is given as HTML."""
        self._line.value = pages.graph_html(graph)
        for place, value in ((self._above, cell), (self._differs, differs), (self._detail, detail)):
            place.value = value
            show(place, bool(value))
        self._toggle.icon = "caret-down" if detail else "caret-right"
        name = one_line(f"{graph.function} {graph.compile_id}", 60)
        does = "close" if detail else "open"
        self._toggle.tooltip = f"{does} {name} (%nbcache graphs {graph.compile_id})"
        self._diff.tooltip = (
            f"{'hide' if differs else 'show'} what differs of {name} (%nbcache why {graph.compile_id})"
        )
        self._diff.layout.visibility = "hidden" if graph.explanation is None else None  # it keeps its place
        show(self.box, True)


class SettingsForm:
    """Every setting, and a line to change one."""

    def __init__(
        self,
        act: Callable[[Any], None],
        verbs: Verbs,
        ask_first: Callable[[Callable[[], tuple[str, Callable[[], Sequence[str]] | None]], str], None],
        *,
        is_open: bool,
    ) -> None:
        self._act = act
        self._verbs = verbs
        self._ask_first = ask_first
        self._table = html()
        self._values: dict[str, str] = {}
        """What each setting is now."""
        self._offered: tuple[object, ...] = ()
        """What stood in the form before anybody changed it."""
        names = [name for name in Settings.names() if name not in _FIXED]
        torchs = [name for name in cache_settings.NAMES if name != cache_settings.FOLDER]
        self._name = widgets.Dropdown(options=[*names, *torchs], layout={"width": "220px"})
        self._choice = widgets.Dropdown(layout={"width": "120px"})
        self._text = text("160px")
        self._magic = html()
        for each in (self._name, self._choice, self._text):
            each.observe(self._tell, "value")
        start = partial(once_typed, self._change)
        change = button("set", "%nbcache config NAME=VALUE", "change it for this kernel", start)
        line = row([self._name, self._choice, self._text, change, self._magic])
        self.section = Section("SETTINGS", [line, self._table], is_open)
        self._tell()

    def draw(self, facts: Facts) -> None:
        """Show values and origins."""
        self.section.tell(pages.settings_words(facts))
        is_first = not self._values
        self._values = {row.name: row.value for row in (*facts.settings, *facts.torch_settings)}
        if is_first and self._offered == (self._choice.value, self._text.value):
            self._tell()
        self._table.value = pages.fitting(pages.settings_table_html(facts))

    def _tell(self, change: Any = None) -> None:
        """Offer the values that the chosen setting can have, and say which magic does the same."""
        name = str(self._name.value)
        choices: Sequence[str] = _SWITCH if name in cache_settings.NAMES else Settings.choices(name)
        if change is None or change["owner"] is self._name:
            now = self._values.get(name, "")
            self._choice.options = choices
            self._choice.value = now if now in choices else next(iter(choices), None)
            self._text.value = "" if choices else now
            self._offered = (self._choice.value, self._text.value)
        show(self._choice, bool(choices))
        show(self._text, not choices)
        self._magic.value = pages.magic_html(f"%nbcache config {name}={self._chosen() or '…'}")

    def _chosen(self) -> str:
        given = self._choice.value if self._choice.options else self._text.value
        return str(given or "").strip()

    def _change(self) -> None:
        name, value = str(self._name.value), self._chosen()
        change = partial(self._verbs.change, name, value)
        if (name, value) == ("trust", Policy.OFF):
            self._ask_first(lambda: (_TRUST_OFF, change), "Change it?")
        else:
            self._act(change)
