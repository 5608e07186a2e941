"""The sections of a panel as documents, the whole panel as one, and the parts that only a live panel has."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from nbcache.core.model import Level, Outcome
from nbcache.core.reports import CellReport, GraphRecord
from nbcache.core.text import DOT, NOTHING, ago, counted, duration, one_line, size
from nbcache.explain.stats import tally
from nbcache.ui.display import document as doc
from nbcache.ui.display.document import badge, code, faint, line
from nbcache.ui.display.plan import plan_blocks, plan_parts
from nbcache.ui.display.render import Rendered, render
from nbcache.ui.display.reports import run_blocks, settings_blocks
from nbcache.ui.display.rows import BAR, activity_parts, store_parts
from nbcache.ui.display.timeline import (
    cells_blocks,
    cells_words,
    lost_blocks,
    lost_words,
    runs_blocks,
    runs_words,
)
from nbcache.ui.display.words import explanations, saved, short_location, source, taken, totals
from nbcache.ui.panels.values import Facts, GraphPage, Now, Order, Space, Stranger, graph_page

__all__ = [
    "SECTIONS",
    "TITLES",
    "blocks_of",
    "cell_blocks",
    "graph_line",
    "head_blocks",
    "live_blocks",
    "problem_blocks",
    "quoted",
    "render_panel",
    "stranger_blocks",
    "words_of",
]

SECTIONS = ("next", "graphs", "levels", "people", "snapshot", "settings", "space")
"""The sections of a whole panel, in order."""
TITLES = {
    "next": "NEXT RUN",
    "graphs": "GRAPHS",
    "levels": "LEVELS",
    "people": "PEOPLE",
    "snapshot": "SNAPSHOT",
    "timeline": "TIMELINE",
    "lost": "SECONDS LOST",
    "runs": "LAST RUNS",
    "settings": "SETTINGS",
    "space": "SPACE",
}
_OPEN = ("graphs", "people", "snapshot", "timeline", "lost", "runs")
"""Sections that are open in a saved notebook."""
_BEING_READ = "being read"
_TYPED = ("%nbcache ", "nbcache ")
"""The beginning of lines that a person types or pastes."""
_MOST_SPACES = 12
_MOST_SAVED = 20
"""Graphs that a saved notebook keeps."""
_MOST_OPEN = 3
"""Cells whose graphs are open in a saved notebook."""
_PLACES = ("notebook", "dir", "trust_dir", "TORCHINDUCTOR_CACHE_DIR")
"""Settings with long values, which only the table shows."""
_LEVELS = {
    Level.L0: "torch's own folder",
    Level.L1: "local store",
    Level.L2: "the notebook's snapshot",
    Level.L3: "shared store",
}


def render_panel(now: Now, facts: Facts, sections: Sequence[str] = SECTIONS, *, note: str = "") -> Rendered:
    """Return the panel as it is now, for a saved notebook and a terminal; `note` says how to have it live."""
    at = time.strftime("%H:%M:%S", time.localtime(facts.time or time.time()))
    state = DOT.join(filter(None, [*_activity(now, ("#", "-")), f"as of {at}", note]))
    blocks = [*head_blocks(facts, "nbcache panel"), line(state, style=doc.Style.FAINT)]
    for name in sections:
        inner = blocks_of(name, facts, now)
        if name == "people":
            inner += [block for stranger in facts.strangers for block in stranger_blocks(stranger)]
        blocks.append(doc.Folded(doc.Title(TITLES[name], words_of(name, facts, now)), inner, name in _OPEN))
    return render(blocks)


def words_of(name: str, facts: Facts, now: Now) -> list[str]:
    """Return a section in short."""
    return _SECTIONS[name][0](facts, now)


def blocks_of(name: str, facts: Facts, now: Now) -> list[doc.Block]:
    """Return what is in a section."""
    return _SECTIONS[name][1](facts, now)


def head_blocks(facts: Facts, label: str = "nbcache") -> list[doc.Block]:
    """Return the line that names the notebook and the machine."""
    unknown = "a kernel that cannot tell its notebook" if facts.is_read else _BEING_READ
    return [doc.Title(label, [one_line(facts.notebook, 60) or unknown, *facts.machine])]


def live_blocks(now: Now) -> list[doc.Block]:
    """Return what the kernel does now; while a cell runs, also that buttons wait."""
    parts = DOT.join(_activity(now, BAR))
    if not now.running:
        return [line(parts, style=doc.Style.FAINT)]
    mark = doc.Span("\N{BLACK RIGHT-POINTING TRIANGLE}", doc.Style.BOLD)
    waits = faint("· a button that is pressed now acts at its end")
    return [line(mark, parts, waits, mark=doc.Mark.RUNNING)]


def quoted(lines: Sequence[str]) -> list[doc.Block]:
    """Return the answer of a verb; lines to be typed or pasted are in a font of equal widths."""
    return [
        line(code(text) if text.startswith(_TYPED) else text, style=doc.Style.PLAIN, mark=doc.Mark.QUOTE)
        for text in lines
    ]


def problem_blocks(what: str, next_step: str | None) -> list[doc.Block]:
    """Return what failed, and what to do."""
    steps = [("not done:", what), *([("next:", next_step)] if next_step else [])]
    return [line(doc.Span(label, doc.Style.BOLD), text, mark=doc.Mark.NOTICE) for label, text in steps]


def stranger_blocks(stranger: Stranger) -> list[doc.Block]:
    """Return somebody who is not trusted, with the whole fingerprint."""
    calls = f"calls itself {one_line(stranger.name, 40)}" if stranger.name else ""
    who = DOT.join(filter(None, [calls, stranger.what]))
    fit = [line(stranger.fit)] if stranger.fit else []
    fingerprint = line(doc.Span(stranger.fingerprint, doc.Style.PATH))
    return [line(doc.Span("not trusted:", doc.Style.BOLD), who), *fit, fingerprint]


def _activity(now: Now, bar: tuple[str, str]) -> list[str]:
    """Return the cell that runs and for how long, and what it compiles."""
    if not now.running:
        return ["no cell runs"]
    parts = [f"{now.running} runs, {duration(round(now.running_seconds, 1))}"]
    return parts + (activity_parts(now.activity, bar) if now.activity else ["nothing compiles now"])


# --- sections ---------------------------------------------------------------------------------------


def _plan_words(facts: Facts, now: Now) -> list[str]:
    if facts.plan_problem or not facts.is_read:
        return [_unread(facts)]
    return plan_parts(facts.plan)


def _plan(facts: Facts, now: Now) -> list[doc.Block]:
    return plan_blocks(facts.plan, () if facts.plan_problem else facts.plan_notes)


def _unread(facts: Facts) -> str:
    """Return why something is not there yet."""
    return facts.plan_problem or _BEING_READ


def _graphs_words(facts: Facts, now: Now) -> list[str]:
    return totals(now.graphs) if now.graphs else ["nothing has compiled in this kernel yet"]


def _graphs(facts: Facts, now: Now) -> list[doc.Block]:
    """Return the graphs of the newest cells, folded by cell."""
    runs: list[list[GraphRecord]] = []
    for _, graph in graph_page(now.graphs, size=_MOST_SAVED).rows:
        if runs and runs[-1][-1].cell == graph.cell:
            runs[-1].append(graph)
        else:
            runs.append([graph])
    blocks: list[doc.Block] = [
        run_blocks(CellReport(run[0].cell, tuple(run), 0.0), is_open=i < _MOST_OPEN)
        for i, run in enumerate(runs)
    ]
    more = len(now.graphs) - sum(map(len, runs))
    said = [line(faint(f"and {counted(more, 'graph')} before (%nbcache status has all)"))] if more else []
    return [*blocks, *said]


def _by_level(now: Now) -> list[tuple[str, str, int, str]]:
    """Return (level, its name, graphs, what that saved or took), and last what was compiled."""
    levels = {row.level: row for row in tally(now.graphs).levels}
    rows = []
    for level, name in _LEVELS.items():
        hits = levels[level].hits if level in levels else 0
        gain = f"saved {duration(levels[level].saved_seconds)}" if hits else ""
        rows.append((level.value, name, hits, gain))
    compiled = [graph for graph in now.graphs if graph.outcome is not Outcome.HIT]
    took = f"took {duration(sum(graph.total_seconds for graph in compiled))}" if compiled else ""
    return [*rows, ("", "compiled here", len(compiled), took)]


def _levels_words(facts: Facts, now: Now) -> list[str]:
    return [f"{level or name} {count}" for level, name, count, _ in _by_level(now) if count or level]


def _levels(facts: Facts, now: Now) -> list[doc.Block]:
    levels = _by_level(now)
    most = max(count for _, _, count, _ in levels)
    rows: list[list[doc.Cell]] = [
        [
            level,
            name,
            str(count or NOTHING),
            doc.Meter(count, most, doc.Style.GOOD if level else doc.Style.FAIR),
            gain,
        ]
        for level, name, count, gain in levels
    ]
    columns = [
        doc.Column(""),
        doc.Column("from"),
        doc.Column("graphs", doc.Wrap.NUMBER),
        doc.Column(""),
        doc.Column("", doc.Wrap.REST),
    ]
    return [doc.Table(columns, rows)]


def _people_words(facts: Facts, now: Now) -> list[str]:
    strangers = [f"{counted(len(facts.strangers), 'signer')} not trusted"] if facts.strangers else []
    return [*(now.shared or ["not connected to a shared store"]), *strangers]


def _people(facts: Facts, now: Now) -> list[doc.Block]:
    """Return who has published what of this notebook."""
    nobody = "Nobody whom you trust has published anything of this notebook there."
    return [line(text) for text in (facts.people or [nobody])] if now.shared else []


def _snapshot_words(facts: Facts, now: Now) -> list[str]:
    if not facts.is_read:
        return [_unread(facts)]
    return list(facts.snapshots[:1]) or ["none is beside this notebook yet"]


def _snapshots(facts: Facts, now: Now) -> list[doc.Block]:
    """Return the other snapshots that came along, and the lines that a colleague pastes."""
    return [*map(line, facts.snapshots[1:]), *quoted(facts.paste)]


def _settings_words(facts: Facts, now: Now) -> list[str]:
    """Return the settings that differ from their defaults."""
    if not facts.is_read:
        return [_unread(facts)]
    rows = [*facts.settings, *facts.torch_settings]
    changed = [row for row in rows if row.origin != "default" and row.name not in _PLACES]
    return [f"{row.name}={one_line(row.value, 40) or NOTHING}" for row in changed] or ["all as by default"]


def _settings(facts: Facts, now: Now) -> list[doc.Block]:
    return settings_blocks(facts.settings, facts.torch_settings) if facts.settings else []


def _space_words(facts: Facts, now: Now) -> list[str]:
    if not facts.is_read:
        return [_unread(facts)]
    return store_parts(facts.store)[1:] if facts.store else ["the local store cannot be read"]


def _spaces(facts: Facts, now: Now) -> list[doc.Block]:
    """Return what the local store keeps of each notebook, largest first."""
    rows = [_space(space, facts) for space in facts.spaces[:_MOST_SPACES]]
    if not rows:
        return [line("Nothing is stored yet.")] if facts.store else []
    columns = [doc.Column("notebook", doc.Wrap.WORDS)]
    columns += [doc.Column(title, doc.Wrap.NUMBER) for title in ("graphs", "artifacts", "unpacked")]
    more = len(facts.spaces) - len(rows)
    others = [line(faint(f"and {counted(more, 'more notebook')}"))] if more else []
    return [doc.Table([*columns, doc.Column("last used")], rows), *others]


def _space(space: Space, facts: Facts) -> list[str]:
    name = one_line(space.notebook.replace("\\", "/").rsplit("/", 1)[-1], 60)
    here = " (this notebook)" if name and space.notebook == facts.identity else ""
    whose = f"{name}{here}" if name else "kernels that cannot tell their notebook"
    when = ago(max(0.0, (facts.time or time.time()) - space.used)) if space.used else NOTHING
    return [whose, str(space.graphs), str(space.artifacts), size(space.bytes), when]


_SECTIONS: Mapping[str, tuple[Callable[[Facts, Now], list[str]], Callable[[Facts, Now], list[doc.Block]]]] = {
    "next": (_plan_words, _plan),
    "graphs": (_graphs_words, _graphs),
    "levels": (_levels_words, _levels),
    "people": (_people_words, _people),
    "snapshot": (_snapshot_words, _snapshots),
    "timeline": (
        lambda facts, _: cells_words(facts.timeline),
        lambda facts, _: cells_blocks(facts.timeline),
    ),
    "lost": (lambda facts, _: lost_words(facts.timeline), lambda facts, _: lost_blocks(facts.timeline)),
    "runs": (lambda facts, _: runs_words(facts.timeline), lambda facts, _: runs_blocks(facts.timeline)),
    "settings": (_settings_words, _settings),
    "space": (_space_words, _spaces),
}
"""The words and the blocks of each section."""


def graph_line(graph: GraphRecord) -> doc.Line:
    """Return a graph on one line, for the row that opens."""
    facts = [taken(graph)]
    facts += [f"saved {saved(graph)}"] if saved(graph) != NOTHING else []
    facts += [source(graph)] if source(graph) != NOTHING else []
    facts += [
        text if label == graph.outcome.value else f"{label}: {text}" for label, text in explanations(graph)
    ]
    name = [code(graph.function, 40), faint(short_location(graph), 30)]
    graph_id = faint(f"{graph.compile_id} {graph.direction.value}")
    return line(*name, graph_id, badge(graph.outcome.value), doc.Span(DOT.join(facts), limit=160))


def cell_blocks(page: GraphPage, index: int, graphs: Sequence[GraphRecord]) -> list[doc.Block]:
    """Return the cell of a row, if the row before is of another cell.

    Where graphs are sorted by cell, also what came of the cell, by all `graphs`.
    """
    cell = page.rows[index][1].cell
    if index and page.rows[index - 1][1].cell == cell:
        return []
    label = cell.label if cell else "outside cells"
    of_cell = [graph for graph in graphs if graph.cell == cell] if page.order is Order.NEWEST else []
    return [line(doc.Span(label, doc.Style.BOLD), *([faint(DOT.join(totals(of_cell)))] if of_cell else []))]
