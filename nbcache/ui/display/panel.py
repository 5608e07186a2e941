"""The values that a panel shows, some live and some gathered less often, and its sections as documents."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeAlias

from nbcache.core.model import Environment, Level, Outcome
from nbcache.core.reports import Activity, GraphRecord
from nbcache.core.text import DOT, NOTHING, counted, duration, one_line
from nbcache.kernel.explain.plan import Plan
from nbcache.kernel.explain.stats import tally
from nbcache.kernel.explain.why import explain
from nbcache.torch_bridge.cache_settings import CacheSetting
from nbcache.ui.display import document as doc
from nbcache.ui.display.document import code, faint, line
from nbcache.ui.display.render import Rendered, render
from nbcache.ui.display.reports import detail, graph_line, settings_blocks
from nbcache.ui.display.stats import plan_blocks, plan_parts, tally_tables
from nbcache.ui.display.words import BAR, StoreFigures, activity_parts, store_parts, totals

SECTIONS = ("next run", "graphs", "levels", "people", "snapshot", "settings", "space")
"""The sections of a whole panel, in order."""
OPEN = ("graphs", "people", "snapshot")
"""Sections that are open at first."""
_BEING_READ = "being read"
_TYPED = ("%nbcache ", "nbcache ")
"""Beginnings of lines that a person types or pastes."""
_MOST_GRAPHS = 20
_PLACES = ("notebook", "dir", "trust_dir", "TORCHINDUCTOR_CACHE_DIR")
"""Settings with long values, which only the table shows."""


@dataclass(frozen=True, slots=True)
class Now:
    """The values that change while a cell runs. They are cheap to read."""

    graphs: Sequence[GraphRecord] = ()
    activity: Activity | None = None
    running: str = ""
    """The label of the running cell, `In[3]`; empty if no cell runs."""
    running_seconds: float = 0.0
    shared: Sequence[str] = ()
    """The shared store and its figures, in words; empty if this kernel is not connected."""


@dataclass(frozen=True, slots=True)
class Stranger:
    """An untrusted signer who signed a received snapshot or compiled a part of it."""

    fingerprint: str
    name: str
    """The name that the signer chose."""
    snapshot: str
    """The name of the snapshot."""
    fit: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """The values that are read from disks and other machines, while no cell runs."""

    notebook: str = ""
    """Name of the notebook's file; empty if the kernel could not locate it."""
    machine: Sequence[str] = ()
    plan: Plan = field(default_factory=Plan)
    people: Sequence[str] = ()
    strangers: Sequence[Stranger] = ()
    snapshots: Sequence[str] = ()
    """A line for the snapshot beside the notebook, and one for each received snapshot."""
    paste: Sequence[str] = ()
    settings: Sequence[CacheSetting] = ()
    torch_settings: Sequence[CacheSetting] = ()
    store: StoreFigures | None = None
    """The local store's figures; None if it cannot be read."""
    time: float = 0.0
    is_read: bool = True
    """False until these values were first read."""


_Section: TypeAlias = tuple[list[str], list[doc.Block]]


def machine_parts(environment: Environment | None, graphs: Sequence[GraphRecord]) -> list[str]:
    """Return the parts of this machine that a compile depends on: torch, CPU or GPU, threads."""
    values = {} if environment is None else environment.values
    parts = [f"torch {values['torch.version']}"] if "torch.version" in values else []
    if values.get("device", "cpu") not in ("cpu", "none", ""):
        parts.append(one_line(values["device"], 40))
    if capability := values.get("cpu.capability", ""):
        parts.append(f"CPU {capability}")
    if threads := next((graph.threads for graph in reversed(graphs) if graph.threads), 0):
        parts.append("1 thread" if threads == 1 else f"{threads} threads")
    return parts


def render_panel(live: Now, facts: Facts, sections: Sequence[str] = SECTIONS, *, note: str = "") -> Rendered:
    """Return a static panel for a saved notebook or a terminal; `note` says how to open a live one."""
    at = time.strftime("%H:%M:%S", time.localtime(facts.time or time.time()))
    state = DOT.join(filter(None, [*_activity(live, ("#", "-")), f"as of {at}", note]))
    blocks = [*head_blocks(facts, "nbcache panel"), line(state, style=doc.Style.FAINT)]
    for name in sections:
        words, inner = section(name, facts, live)
        blocks.append(doc.Folded(doc.Title(name.upper(), words), inner, name in OPEN))
    return render(blocks)


def section(name: str, facts: Facts, live: Now) -> _Section:
    words, blocks = _SECTIONS[name](facts, live)
    if name in _OF_FACTS and not facts.is_read:
        words = [facts.plan.problem or _BEING_READ]
    return words, blocks


def head_blocks(facts: Facts, label: str = "nbcache") -> list[doc.Block]:
    unknown = "a kernel without a known notebook" if facts.is_read else _BEING_READ
    return [doc.Title(label, [one_line(facts.notebook, 60) or unknown, *facts.machine])]


def live_blocks(live: Now) -> list[doc.Block]:
    """Return the running cell and its compiles. While a cell runs, add that pressed buttons wait."""
    parts = DOT.join(_activity(live, BAR))
    if not live.running:
        return [line(parts, style=doc.Style.FAINT)]
    mark = doc.Span("\N{BLACK RIGHT-POINTING TRIANGLE}", doc.Style.BOLD)
    waits = faint("· a button that is pressed now acts at its end")
    return [line(mark, parts, waits, mark=doc.Mark.RUNNING)]


def quoted(lines: Sequence[str]) -> list[doc.Block]:
    """Return the lines of a verb's answer; those that a person types or pastes are shown as code."""
    return [line(code(text) if text.startswith(_TYPED) else text, mark=doc.Mark.QUOTE) for text in lines]


def problem_blocks(problem: str, next_step: str | None) -> list[doc.Block]:
    steps = [("not done:", problem), *([("next:", next_step)] if next_step else [])]
    return [line(doc.Span(label, doc.Style.BOLD), text, mark=doc.Mark.NOTICE) for label, text in steps]


def _activity(live: Now, bar: tuple[str, str]) -> list[str]:
    """Return the running cell, its seconds so far, and the graph that it compiles."""
    if not live.running:
        return ["no cell runs"]
    parts = [f"{live.running} runs, {duration(round(live.running_seconds, 1))}"]
    return parts + (activity_parts(live.activity, bar) if live.activity else ["nothing compiles now"])


def _plan(facts: Facts, live: Now) -> _Section:
    return plan_parts(facts.plan), plan_blocks(facts.plan)


def _graphs(facts: Facts, live: Now) -> _Section:
    """Return the newest graphs, grouped by cell, the newest cell first; each graph unfolds to its details."""
    if not live.graphs:
        return ["nothing has compiled in this kernel yet"], []
    newest = live.graphs[-_MOST_GRAPHS:]
    blocks: list[doc.Block] = []
    for cell, graphs in reversed([(cell, [*run]) for cell, run in groupby(newest, lambda graph: graph.cell)]):
        label = doc.Span(cell.label if cell else "outside cells", doc.Style.BOLD)
        of_cell = [graph for graph in live.graphs if graph.cell == cell]
        blocks.append(line(label, faint(DOT.join(totals(of_cell)))))
        blocks += [
            doc.Folded(graph_line(why.graph), detail(why), in_text=doc.InText.HEAD)
            for why in explain(graphs, live.graphs)
        ]
    if more := len(live.graphs) - len(newest):
        blocks.append(line(faint(f"and {counted(more, 'graph')} before (%nbcache status has all)")))
    return totals(live.graphs), blocks


def _levels(facts: Facts, live: Now) -> _Section:
    hits = dict.fromkeys(Level, 0) | {row.level: row.hits for row in tally(live.graphs).levels}
    words = [f"{level.value} {count}" for level, count in hits.items()]
    compiled = sum(graph.outcome is not Outcome.HIT for graph in live.graphs)
    return [*words, f"compiled here {compiled}"], tally_tables(tally(live.graphs))


def _people(facts: Facts, live: Now) -> _Section:
    nobody = "No trusted signer has published graphs of this notebook there."
    blocks: list[doc.Block] = [line(text) for text in (facts.people or [nobody])] if live.shared else []
    strangers = [f"{counted(len(facts.strangers), 'signer')} not trusted"] if facts.strangers else []
    for stranger in facts.strangers:
        calls = f"calls itself {one_line(stranger.name, 40)}" if stranger.name else ""
        who = DOT.join(filter(None, [calls, stranger.snapshot]))
        blocks.append(line(doc.Span("not trusted:", doc.Style.BOLD), who))
        blocks += [line(stranger.fit)] if stranger.fit else []
        blocks.append(line(doc.Span(stranger.fingerprint, doc.Style.PATH)))
    return [*(live.shared or ["not connected to a shared store"]), *strangers], blocks


def _snapshot(facts: Facts, live: Now) -> _Section:
    """Return the snapshots, the notebook's own first, and the lines for a colleague to paste."""
    words = list(facts.snapshots[:1]) or ["none is beside this notebook yet"]
    return words, [*map(line, facts.snapshots[1:]), *quoted(facts.paste)]


def _settings(facts: Facts, live: Now) -> _Section:
    """Return a table of all settings; the title lists those that differ from their defaults."""
    rows = [*facts.settings, *facts.torch_settings]
    changed = [row for row in rows if row.origin != "default" and row.name not in _PLACES]
    words = [f"{row.name}={one_line(row.value, 40) or NOTHING}" for row in changed] or ["all as by default"]
    return words, settings_blocks(facts.settings, facts.torch_settings) if rows else []


def _space(facts: Facts, live: Now) -> _Section:
    return store_parts(facts.store)[1:] if facts.store else ["the local store cannot be read"], []


_SECTIONS: Mapping[str, Callable[[Facts, Now], _Section]] = {
    "next run": _plan,
    "graphs": _graphs,
    "levels": _levels,
    "people": _people,
    "snapshot": _snapshot,
    "settings": _settings,
    "space": _space,
}
_OF_FACTS = ("next run", "snapshot", "settings", "space")
"""Sections that are empty until the facts are read."""
