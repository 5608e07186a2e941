"""Draw what was measured: grouped bars, seconds on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from nbcache.bench.options import Idle, Variant
from nbcache.bench.report import hot_of
from nbcache.bench.results import Result, rows_of

__all__ = ["bars_of", "draw"]

_COLOURS = {  # Okabe and Ito's, which people of all colour visions tell apart
    Variant.EAGER.value: "#999999",
    Variant.COLD.value: "#D55E00",
    Variant.TORCH_WARM.value: "#E69F00",
    Variant.MEGA_CACHE.value: "#CC79A7",
    Variant.RESTART.value: "#0072B2",
    Variant.FRESH.value: "#009E73",
    Variant.TORCH_REDIS.value: "#F0E442",
    Variant.SHARED.value: "#56B4E9",
    Variant.COLD_TRACED.value: "#8C510A",
    Variant.TRACED.value: "#01665E",
    Variant.FORKED.value: "#762A83",
    Variant.FORKED_TRACED.value: "#5AAE61",
    "hot": "#000000",
}
_NO_IDLE = "#FFFFFF"
"""Colour of the hatching on bars of nbcache's variants that were given no idle time."""

_ACROSS = 5
"""Groups beside each other; further ones go below."""

Bar = tuple[str, Idle | None]
"""What a bar stands for: a variant's value or `hot`, and the idle time."""


def bars_of(result: Result) -> dict[Bar, float]:
    """Return the seconds of each bar of a subject's group, in the order in which they stand."""
    rows = rows_of(result.runs)
    bars: dict[Bar, float] = {(row.variant.value, row.idle): row.cell_seconds for row in rows}
    if (hot := hot_of(rows)) is not None:
        bars["hot", None] = hot
    return bars


def draw(results: Sequence[Result], environment: Mapping[str, Any], file: str) -> None:
    """Draw the medians into `file`, as its suffix says (`.svg`, `.png`)."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure  # not pyplot: no window, whatever backend is set

    measured = [result for result in results if result.runs]
    every = [bars_of(result) for result in measured]
    kinds = sorted({bar for bars in every for bar in bars}, key=_order)
    seconds = [each for bars in every for each in bars.values()]
    across = min(len(measured), _ACROSS)
    lines = [measured[at : at + across] for at in range(0, len(measured), across)]
    size = (max(8.0, 1.0 + 0.27 * (len(kinds) + 1.5) * across), 1.2 + 4.2 * len(lines))
    with rc_context({"svg.hashsalt": "nbcache", "hatch.linewidth": 0.8}):
        figure = Figure(figsize=size, layout="constrained")
        for axes, line in zip(figure.subplots(len(lines), squeeze=False)[:, 0], lines, strict=True):
            _draw_line(axes, line, kinds, across)
            axes.set_ylim(10 ** math.floor(math.log10(min(seconds))), max(seconds) * 3)
        figure.suptitle("First call of a torch.compile'd model in a fresh kernel", fontsize=13)
        figure.axes[0].set_title(_subtitle(measured, environment), fontsize=9)
        figure.supylabel("seconds from running the cell to its result (log scale)", fontsize=10)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        columns = min(len(kinds), 5)
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8.5)
        figure.savefig(file, dpi=150, metadata={"Date": None} if file.endswith(".svg") else None)


def _draw_line(axes: Any, results: Sequence[Result], kinds: Sequence[Bar], across: int) -> None:
    """Draw the groups of one line of the chart."""
    groups = [bars_of(result) for result in results]
    width = 1.0 / (len(kinds) + 1.5)
    for position, kind in enumerate(kinds):
        present = [(group, bars[kind]) for group, bars in enumerate(groups) if kind in bars]
        drawn = axes.bar(
            [group + (position - (len(kinds) - 1) / 2) * width for group, _ in present],
            [seconds for _, seconds in present],
            width,
            color=_COLOURS[kind[0]],
            label=_label(kind),
            hatch="////" if kind[1] == 0 and _several_idle(kinds) else None,
            edgecolor=_NO_IDLE,
            linewidth=0.5,
        )
        axes.bar_label(
            drawn, [_figure(seconds) for _, seconds in present], padding=2, fontsize=7, rotation=90
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, position: f"{value:g}")
    axes.set_xlim(-0.5 - width / 2, across - 0.5 + width / 2)
    axes.set_xticks(range(len(results)), [_name(result) for result in results])
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _order(bar: Bar) -> tuple[int, float]:
    known = [*(variant.value for variant in Variant), "hot"]
    idle = bar[1]
    return known.index(bar[0]), math.inf if isinstance(idle, str) else idle or 0.0


def _several_idle(kinds: Sequence[Bar]) -> bool:
    return len({idle for _, idle in kinds if idle is not None}) > 1


def _label(bar: Bar) -> str:
    name, idle = bar
    if name == "hot":
        return "hot call"
    label = Variant(name).label
    if idle is None:
        return label
    return f"{label}, after idle time" if isinstance(idle, str) else f"{label}, idle {idle:g} s"


def _name(result: Result) -> str:
    subject = result.subject
    return "\n".join([subject.model, ", ".join([subject.mode.value, *subject.unusual])])


def _figure(seconds: float) -> str:
    """Return seconds in two significant digits, without a unit: the axis has it."""
    if seconds >= 9.95:
        return f"{seconds:.0f}"
    digits = max(0, 1 - math.floor(math.log10(seconds)))
    return f"{seconds:.{digits}f}"


def _subtitle(results: Sequence[Result], environment: Mapping[str, Any]) -> str:
    sizes = list(dict.fromkeys(result.subject.size for result in results if result.subject.size))
    parts = [f"nbcache {environment.get('nbcache', '?')}", f"torch {environment.get('torch', '?')}"]
    parts += [str(environment.get("gpu") or environment.get("cpu") or "")]
    if not environment.get("gpu") and environment.get("cores"):
        parts[-1] += f", {environment['cores']} cores"
    parts += [f"{' and '.join(sizes)} sizes" if sizes else ""]
    runs = max(run.number for result in results for run in result.runs)
    parts += [f"medians of {runs} runs" if runs > 1 else "one run each"]
    return " · ".join(filter(None, parts))
