"""Values that a panel shows, gathered at two paces, and the verbs behind its buttons."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from nbcache.core.model import Environment, Manifest
from nbcache.core.reports import Activity, GraphRecord
from nbcache.core.text import one_line
from nbcache.explain.plan import Plan
from nbcache.explain.timeline import Timeline
from nbcache.ui.display.render import Rendered
from nbcache.ui.display.words import SettingRow, StoreFigures

__all__ = ["Facts", "Now", "Space", "Stranger", "Verbs", "machine_parts", "spaces"]


@dataclass(frozen=True, slots=True)
class Now:
    """The values that change while a cell runs. They are cheap to read."""

    graphs: Sequence[GraphRecord] = ()
    """Every graph of this kernel, in the order in which they were done."""
    activity: Activity | None = None
    """The running compile."""
    running: str = ""
    """The cell that runs, `In[3]`; empty where none does."""
    running_seconds: float = 0.0
    shared: Sequence[str] = ()
    """The shared store and what was exchanged with it, in words; empty where this kernel is not connected."""


@dataclass(frozen=True, slots=True)
class Space:
    """The contents of the local store that belong to one notebook."""

    notebook: str
    """Its identity; empty for what kernels that cannot tell their notebook have in common."""
    graphs: int
    artifacts: int
    bytes: int
    """Of content, uncompressed; what several notebooks use counts for each."""
    used: float
    """Unix seconds at which a kernel last made or hit something of it."""


@dataclass(frozen=True, slots=True)
class Stranger:
    """Somebody who signed or compiled what came along, and is not trusted."""

    fingerprint: str
    """The whole of it, in groups."""
    name: str
    """The name that they chose."""
    what: str
    """The snapshot that they have to do with."""
    fit: str = ""
    """A sentence on whether it fits here."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The values that come from disks and from other machines, gathered while no cell runs."""

    notebook: str = ""
    """Name of its file; empty where this kernel cannot tell."""
    identity: str = ""
    """Its identity: other notebooks may have the same name."""
    machine: Sequence[str] = ()
    plan: Plan = field(default_factory=lambda: Plan((), 0))
    plan_notes: Sequence[str] = ()
    plan_problem: str = ""
    """Why there is no plan; empty where there is one."""
    people: Sequence[str] = ()
    """Who has published what of this notebook, a line each."""
    strangers: Sequence[Stranger] = ()
    snapshots: Sequence[str] = ()
    """The snapshot beside the notebook and those that came along, a line each."""
    paste: Sequence[str] = ()
    """What a colleague pastes to have the snapshot, a line each; empty where there is none."""
    timeline: Timeline = field(default_factory=lambda: Timeline((), (), ()))
    settings: Sequence[SettingRow] = ()
    torch_settings: Sequence[SettingRow] = ()
    store: StoreFigures | None = None
    """The local store; None where it cannot be read."""
    spaces: Sequence[Space] = ()
    """Largest first."""
    time: float = 0.0
    """Unix seconds at which all this was so."""
    is_read: bool = True
    """False as long as nothing of it is known."""


class Verbs(Protocol):
    """The session behind a panel.

    A verb returns lines or outputs to be shown. It raises NbcacheError or UsageError where it fails.
    """

    def now(self) -> Now:
        """Return what changes while a cell runs."""

    def facts(self) -> Facts:
        """Gather the rest; this may take a second or more."""

    def later(self, action: Callable[[], None]) -> str:
        """Call `action` when the running cell has ended; return that cell, empty if none runs."""

    def shown(self, verb: str) -> Sequence[Rendered]:
        """Return the output of `%nbcache doctor`, `why`, `stats` or `timeline`."""

    def whole(self, graph: str) -> Sequence[Rendered]: ...
    def snapshot(self) -> Sequence[str]: ...
    def restore(self) -> Sequence[str]: ...
    def share(self) -> Sequence[str]: ...
    def verify(self) -> Sequence[str]: ...
    def attach(self) -> Sequence[str]: ...
    def connect(self, url: str) -> Sequence[str]: ...
    def disconnect(self) -> Sequence[str]: ...
    def trust(self, fingerprint: str, name: str) -> Sequence[str]: ...
    def ignore(self, fingerprint: str) -> Sequence[str]: ...
    def change(self, name: str, value: str) -> Sequence[str]: ...

    def going(self, *, everything: bool = False) -> tuple[str, Callable[[], Sequence[str]] | None]:
        """Return in words what is stored of this notebook, or altogether, and what removes just that.

        None where there is nothing to remove. The removal raises NbcacheError if it has changed since.
        """


def spaces(manifests: Iterable[Manifest]) -> list[Space]:
    """Return what is kept of each notebook, largest first."""
    by_notebook: dict[str, list[Manifest]] = {}
    for manifest in manifests:
        by_notebook.setdefault(manifest.notebook, []).append(manifest)
    found = []
    for notebook, each in by_notebook.items():
        refs = {(one.environment.digest, *ref.identity): ref for one in each for ref in one.artifacts}
        graphs = {(one.environment.digest, *graph.identity) for one in each for graph in one.graphs}
        found.append(
            Space(
                notebook,
                len(graphs),
                len({ref.digest for ref in refs.values()}),
                sum({ref.digest: ref.size for ref in refs.values()}.values()),
                max((ref.used for ref in refs.values()), default=0.0),
            )
        )
    return sorted(found, key=lambda space: (-space.bytes, space.notebook))


def machine_parts(environment: Environment | None, graphs: Sequence[GraphRecord]) -> list[str]:
    """Return what a compile depends on here, in words: torch, processor or GPU, threads."""
    values = {} if environment is None else environment.values
    parts = [f"torch {values['torch.version']}"] if "torch.version" in values else []
    if values.get("device", "cpu") not in ("cpu", "none", ""):
        parts.append(one_line(values["device"], 40))
    if capability := values.get("cpu.capability", ""):
        parts.append(f"CPU {capability}")
    if threads := next((graph.threads for graph in reversed(graphs) if graph.threads), 0):
        parts.append("1 thread" if threads == 1 else f"{threads} threads")
    return parts
