"""Parts of a panel as HTML: values in, strings out. What comes from elsewhere passes through `_text`.

Live rows are flexible boxes, which fold where the page is narrow. They stand in widgets, whose HTML no front
end sanitizes; what a saved notebook keeps is in `saved`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from html import escape

from nbcache.core.model import Level, Outcome
from nbcache.core.reports import GraphRecord
from nbcache.core.text import DOT, NOTHING, ago, counted, duration, one_line, size
from nbcache.explain.stats import tally
from nbcache.ui.display.graph import phase_bars
from nbcache.ui.display.html import (
    BAR,
    BOX,
    CELL,
    CODE,
    FAINT,
    LINE,
    NOTICE,
    NUMBER,
    WRAPPED,
    _badge,
    _head,
    _rows,
    _tag,
    _text,
    settings_html,
)
from nbcache.ui.display.plan import plan_html as by_cell
from nbcache.ui.display.plan import plan_parts
from nbcache.ui.display.rows import activity_parts, store_parts
from nbcache.ui.display.words import explanations, saved, short_location, source, taken, totals
from nbcache.ui.panels.values import Facts, GraphPage, Now, Order, Space, Stranger

__all__ = [
    "activity_words",
    "boxed",
    "by_level",
    "cell_html",
    "fitting",
    "graph_headers_html",
    "graph_html",
    "graphs_words",
    "head_html",
    "levels_html",
    "levels_words",
    "live_html",
    "magic_html",
    "people_html",
    "people_words",
    "plan_html",
    "plan_words",
    "problem_html",
    "said_html",
    "section_html",
    "settings_table_html",
    "settings_words",
    "snapshot_words",
    "snapshots_html",
    "space_html",
    "space_words",
    "stranger_html",
]

_BEING_READ = "being read"
_TYPED = ("%nbcache ", "nbcache ")
"""How lines begin that a person is to type or paste."""
_MOST_SPACES = 12
_REST = f"{WRAPPED};width:100%"
"""A column that takes what room is left."""
_PLACES = ("notebook", "dir", "trust_dir", "TORCHINDUCTOR_CACHE_DIR")
"""Settings that are long, and whose table has them."""
_NAMES = {
    Level.L0: "torch's own folder",
    Level.L1: "local store",
    Level.L2: "the notebook's snapshot",
    Level.L3: "shared store",
}
_BARS = {True: "rgba(46,160,67,0.7)", False: "rgba(219,148,0,0.7)"}
"""Colours of what was hit, and of what was compiled."""
_COLUMNS = (
    ("function", "flex:3 1 130px"),
    ("graph", "flex:0 0 100px"),
    ("outcome", "flex:0 0 58px"),
    ("time", "flex:0 0 66px;text-align:right;white-space:nowrap"),
    ("saved", "flex:0 0 66px;text-align:right;white-space:nowrap"),
    ("from", "flex:1 1 110px"),
    ("why", "flex:3 1 200px"),
)
_ROW = "display:flex;flex-wrap:wrap;gap:0 12px;align-items:baseline;font-size:13px;line-height:1.6"
_CELL = ' class="nbcache-cell"'
_SAVED = '<span class="nbcache-narrow">saved </span>'
_NONE = f'<span class="nbcache-wide">{NOTHING}</span>'
_CONTAINER = "container-type:inline-size"
_NARROW = (
    "@container (max-width:720px){.nbcache-wide{display:none!important}"
    ".nbcache-cell{flex:0 1 auto!important;text-align:left!important}}"
    "@container (min-width:720.1px){.nbcache-narrow{display:none}}"
)
"""Where there is no room for columns, a row is words that follow one another, and needs no titles."""
_CUT = "min-width:0;overflow:hidden;text-overflow:ellipsis;white-space:nowrap"


# --- the head ---------------------------------------------------------------------------------------


def head_html(facts: Facts) -> str:
    """Return what the panel is of: the notebook and the machine."""
    unknown = "a kernel that cannot tell its notebook" if facts.is_read else _BEING_READ
    whose = one_line(facts.notebook, 60) or unknown
    return _tag("div", BOX, _head("nbcache", [whose, *facts.machine]))


def activity_words(now: Now, bar: tuple[str, str] = ("#", " ")) -> list[str]:
    """Return what goes on: the cell that runs and for how long, what it compiles."""
    if not now.running:
        return ["no cell runs"]
    parts = [f"{now.running} runs, {duration(round(now.running_seconds, 1))}"]
    return parts + (activity_parts(now.activity, bar) if now.activity else ["nothing compiles now"])


def live_html(now: Now) -> str:
    """Return what goes on for the panel; that buttons wait is said while they do."""
    parts = activity_words(now, BAR)
    if not now.running:
        return _tag("div", f"{BOX};{FAINT}", _text(DOT.join(parts)))
    waits = DOT + _text("a button that is pressed now acts at its end", style=FAINT)
    mark = _tag("b", "", "\N{BLACK RIGHT-POINTING TRIANGLE} ")
    edge = "border-left:3px solid rgba(46,160,67,0.8);padding-left:8px"
    return _tag("div", f"{BOX};{edge}", mark, _text(DOT.join(parts)), waits)


def _unread(facts: Facts) -> str:
    """Return why something is not there yet."""
    return facts.plan_problem or _BEING_READ


def section_html(title: str, words: Iterable[str]) -> str:
    """Return the line above a section: its title, and what is in it in short."""
    said = _text(DOT.join(words), style=FAINT)
    return _tag("div", "font-size:13px;line-height:22px", f"<b>{_text(title)}</b> {said}")


def fitting(html: str) -> str:
    """Return HTML that is no wider than the page: what is in it scrolls, where it is."""
    return _tag("div", "display:grid;grid-template-columns:minmax(0,1fr)", html)


def boxed(html: str) -> str:
    """Return HTML in the size and spacing of a panel."""
    return _tag("div", BOX, html)


def magic_html(magic: str) -> str:
    """Return the magic that does the same as the button before it."""
    return _text(magic, style=f"{CODE};{FAINT};white-space:nowrap")


def said_html(lines: Sequence[str]) -> str:
    """Return what a verb had to say."""
    edge = f"border-left:3px solid {LINE};padding-left:8px;margin:3px 0"
    told = (
        _tag("div", f"{CODE};word-break:break-word" if line.startswith(_TYPED) else "", _text(line))
        for line in lines
    )
    return _tag("div", f"{BOX};{edge}", *told)


def problem_html(what: str, next_step: str | None) -> str:
    """Return what failed, and what to do."""
    told = [_tag("div", "", f"<b>{_text('not done:')}</b> ", _text(what))]
    if next_step:
        told.append(_tag("div", "", "<b>next:</b> ", _text(next_step)))
    return _tag("div", f"{BOX};{NOTICE}", *told)


# --- the next run -----------------------------------------------------------------------------------


def plan_words(facts: Facts) -> list[str]:
    """Return in short what the next kernel will find."""
    if facts.plan_problem or not facts.is_read:
        return [_unread(facts)]
    return plan_parts(facts.plan)


def plan_html(facts: Facts) -> str:
    """Return what the next kernel will find, by cell."""
    return _tag("div", BOX, by_cell(facts.plan, () if facts.plan_problem else facts.plan_notes))


# --- graphs -----------------------------------------------------------------------------------------


def graphs_words(graphs: Sequence[GraphRecord]) -> list[str]:
    """Return graphs, hits, seconds, what was saved."""
    return totals(graphs) if graphs else ["nothing has compiled in this kernel yet"]


def graph_headers_html() -> str:
    """Return the titles of the columns of `graph_html`, and the style by which rows fold on a narrow page."""
    cells = (_tag("span", f"{style};{FAINT}", title) for title, style in _COLUMNS)
    titles = _tag("div", _ROW, *cells, attributes=' class="nbcache-wide"')
    return _tag("div", _CONTAINER, f"<style>{_NARROW}</style>", titles)


def graph_html(graph: GraphRecord) -> str:
    """Return the row of a graph."""
    why = "; ".join(
        text if label == graph.outcome.value else f"{label}: {text}" for label, text in explanations(graph)
    )
    place = _text(one_line(short_location(graph), 30), style=f"{FAINT};font-size:12px")
    gain = saved(graph).replace(" (torch)", "")
    number = f"{_text(graph.compile_id)} {_text(graph.direction.value, style=FAINT)}"
    inner = (
        f"{_text(graph.function, 40, CODE)} {place}",
        number,
        _badge(graph.outcome),
        taken(graph),
        _NONE if gain == NOTHING else f"{_SAVED}{gain}",
        _NONE if source(graph) == NOTHING else _text(source(graph), 40),
        _text(why, 90),
    )
    cut = {
        "function": f"{graph.function} {short_location(graph)}",
        "graph": f"{graph.compile_id} {graph.direction.value}",
        "from": source(graph),
    }
    spans = (
        _tag("span", f"{style};{_CUT}", content, attributes=_title(cut[title]) + _CELL)
        if title in cut
        else _tag("span", f"{style};min-width:0", content, attributes=_CELL)
        for (title, style), content in zip(_COLUMNS, inner, strict=True)
    )
    bars = _text(phase_bars(graph.seconds), style=f"flex:1 1 100%;font-size:12px;line-height:1.3;{FAINT}")
    return _tag("div", _CONTAINER, _tag("div", _ROW, *spans, bars))


def _title(text: str) -> str:
    """Return the attribute that says in a tooltip what may be cut."""
    return f' title="{escape(one_line(text))}"'


def cell_html(page: GraphPage, index: int, graphs: Sequence[GraphRecord]) -> str:
    """Return what stands above a row: its cell, where the row before is of another one.

    Where graphs are sorted by cell, also what came of the cell, by all `graphs`.
    """
    cell = page.rows[index][1].cell
    if index and page.rows[index - 1][1].cell == cell:
        return ""
    label = cell.label if cell else "outside cells"
    of_cell = totals([each for each in graphs if each.cell == cell]) if page.order is Order.NEWEST else []
    head = f"<b>{_text(label)}</b> {_text(DOT.join(of_cell), style=FAINT)}"
    return _tag("div", "font-size:13px;padding-top:4px", head)


# --- levels, people, snapshots ----------------------------------------------------------------------


def by_level(graphs: Sequence[GraphRecord]) -> list[tuple[str, str, int, str]]:
    """Return (level, what it is, graphs, what that saved or took), and what was compiled last."""
    found = tally(graphs)
    levels = {each.level: each for each in found.levels}
    rows = []
    for level, name in _NAMES.items():
        hits = levels[level].hits if level in levels else 0
        gain = f"saved {duration(levels[level].saved_seconds)}" if hits else ""
        rows.append((level.value, name, hits, gain))
    compiled = [graph for graph in graphs if graph.outcome is not Outcome.HIT]
    took = f"took {duration(sum(graph.total_seconds for graph in compiled))}" if compiled else ""
    return [*rows, ("", "compiled here", len(compiled), took)]


def levels_words(levels: Sequence[tuple[str, str, int, str]]) -> list[str]:
    """Return in short where hits came from, by what `by_level` returns."""
    return [f"{level or name} {count}" for level, name, count, _ in levels if count or level]


def levels_html(levels: Sequence[tuple[str, str, int, str]]) -> str:
    """Return where hits came from, as bars, by what `by_level` returns."""
    most = max((count for _, _, count, _ in levels), default=0)
    rows = []
    for level, name, count, gain in levels:
        width = f"width:{90 * count / (most or 1):.0f}px" if count else "width:0px"
        bar = f"display:inline-block;height:10px;background-color:{_BARS[bool(level)]};{width}"
        rows.append([_text(level or " "), _text(name), str(count or NOTHING), _tag("span", bar), _text(gain)])
    return _tag(
        "div", BOX, _rows([("", CELL), ("from", CELL), ("graphs", NUMBER), ("", CELL), ("", _REST)], rows)
    )


def people_words(facts: Facts, now: Now) -> list[str]:
    """Return in short with whom this kernel shares, and how many wait to be trusted."""
    strangers = [f"{counted(len(facts.strangers), 'signer')} not trusted"] if facts.strangers else []
    return [*(now.shared or ["not connected to a shared store"]), *strangers]


def people_html(facts: Facts, now: Now) -> str:
    """Return who has published what of this notebook."""
    if not now.shared:
        return ""
    said = list(facts.people) or ["Nobody whom you trust has published anything of this notebook there."]
    return _tag("div", BOX, *(_tag("div", "", _text(line)) for line in said))


def stranger_html(stranger: Stranger) -> str:
    """Return somebody who is not trusted, with the whole fingerprint."""
    who = f"calls itself {one_line(stranger.name, 40)} · " if stranger.name else ""
    parts = (
        _tag("div", "", "<b>not trusted:</b> ", _text(f"{who}{stranger.what}")),
        _tag("div", "", _text(stranger.fit)),
        _tag("div", f"{CODE};word-wrap:break-word", _text(stranger.fingerprint)),
    )
    return _tag("div", BOX, *parts)


def snapshot_words(facts: Facts) -> list[str]:
    """Return the first snapshot in short."""
    if not facts.is_read:
        return [_unread(facts)]
    return [facts.snapshots[0]] if facts.snapshots else ["none is beside this notebook yet"]


def snapshots_html(facts: Facts) -> str:
    """Return the other snapshots that came along, and what a colleague pastes."""
    told = "".join(_tag("div", "", _text(line)) for line in facts.snapshots[1:])
    return _tag("div", BOX, told + (said_html(facts.paste) if facts.paste else ""))


# --- settings and space -----------------------------------------------------------------------------


def settings_words(facts: Facts) -> list[str]:
    """Return in short which settings are not the default ones."""
    if not facts.is_read:
        return [_unread(facts)]
    rows = [*facts.settings, *facts.torch_settings]
    changed = [row for row in rows if row.origin != "default" and row.name not in _PLACES]
    return [f"{row.name}={one_line(row.value, 40) or NOTHING}" for row in changed] or ["all as by default"]


def settings_table_html(facts: Facts) -> str:
    """Return every setting, its value and where that comes from."""
    return settings_html(facts.settings, facts.torch_settings)


def space_words(facts: Facts) -> list[str]:
    """Return in short what the local store holds."""
    if not facts.is_read:
        return [_unread(facts)]
    return store_parts(facts.store)[1:] if facts.store else ["the local store cannot be read"]


def space_html(facts: Facts, now: float | None = None) -> str:
    """Return what the local store keeps of each notebook, largest first."""
    at = time.time() if now is None else now
    rows = [_space(each, facts, at) for each in facts.spaces[:_MOST_SPACES]]
    if not rows:
        return _tag("div", BOX, _text("Nothing is stored yet." if facts.store else ""))
    headers = [("notebook", f"{_REST};word-break:break-word"), ("graphs", NUMBER), ("artifacts", NUMBER)]
    headers += [("unpacked", NUMBER), ("last used", WRAPPED)]
    more = len(facts.spaces) - len(rows)
    said = [_tag("div", FAINT, _text(f"and {counted(more, 'more notebook')}"))] if more else []
    return _tag("div", BOX, _rows(headers, rows), *said)


def _space(space: Space, facts: Facts, now: float) -> list[str]:
    name = one_line(space.notebook.replace("\\", "/").rsplit("/", 1)[-1], 60)
    here = " (this notebook)" if name and space.notebook == facts.identity else ""
    whose = f"{name}{here}" if name else "kernels that cannot tell their notebook"
    when = ago(max(0.0, now - space.used)) if space.used else NOTHING
    return [_text(whose), str(space.graphs), str(space.artifacts), size(space.bytes), when]
