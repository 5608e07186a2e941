"""Run the quickstart in two kernels and compare: `make demo`.

The first kernel starts with nothing: no nbcache store, empty torch cache folder, empty temp folder. Before
the second one starts, torch's cache folder and the temp folder are emptied, and only nbcache's store is
left. Fails unless the second kernel has nothing but hits and the same numbers. How much less time its
compiled cells take depends on what else the machine does: a factor under 5 is a note.

Leaves in build/demo, or in the folder given, quickstart-cold.ipynb, quickstart-restored.ipynb, and the latter
as quickstart.html.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbconvert import HTMLExporter

from nbcache.core.reports import Cell

NOTEBOOK = Path(__file__).parent / "quickstart.ipynb"
BUILD = Path(sys.argv[1] if len(sys.argv) > 1 else NOTEBOOK.parents[1] / "build" / "demo").absolute()
STORE = BUILD / "nbcache"
TEMPORARY = BUILD / "tmp"
"""The kernel's temp folder: nbcache puts torch's cache folder into it, torch its precompiled headers."""

USUAL_RATIO = 5.0
"""How many times less time the compiled cells take when restored, or more, on a machine that is not busy."""
CELL_TIMEOUT = 900
"""Seconds."""

REPORTS = (
    "import json, nbcache; print(json.dumps([report.to_json() for report in nbcache.session().reports]))"
)


@dataclass(frozen=True, slots=True)
class CellRun:
    """One code cell in one kernel."""

    title: str
    seconds: float
    printed: str
    """What the cell itself prints or has as its value: this must be the same in both kernels."""
    graphs: list[dict[str, Any]]
    """As `GraphRecord.to_json` gives them."""

    @property
    def outcomes(self) -> str:
        """The outcomes and how often each, `2 miss, 1 hit`."""
        counts = Counter(graph["outcome"] for graph in self.graphs)
        return ", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "–"

    @property
    def saved_seconds(self) -> float:
        return sum(graph["saved_seconds"] or 0.0 for graph in self.graphs)


def empty(folder: Path) -> None:
    """Make `folder` an empty one."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def kernel_environment() -> dict[str, str]:
    """Return this process's environment, with folders of the demo's own and no other cache settings."""
    ours = ("NBCACHE_", "TORCHINDUCTOR_", "TORCH_COMPILE_", "TRITON_CACHE_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return environment | {
        "IPYTHONDIR": str(BUILD / "ipython"),
        "NBCACHE_DIR": str(STORE),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # or ipykernel's debugger warns about frozen modules
        "TMPDIR": str(TEMPORARY),
    }


def run_notebook(saved_as: Path) -> list[CellRun]:
    """Run the quickstart in a fresh kernel, save it executed, and return what its code cells did."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT,
        extra_arguments=["--log-level=ERROR"],  # or the kernel warns that it listens on a TCP port
        resources={"metadata": {"path": str(NOTEBOOK.parent)}},
    )
    seconds: dict[str, float] = {}
    number = 0
    with client.setup_kernel(env=kernel_environment()):
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type != "code":
                continue
            number += 1
            started = time.perf_counter()
            client.execute_cell(cell, index, execution_count=number)
            seconds[cell.id] = time.perf_counter() - started
            print(f"  In[{number}] {seconds[cell.id]:6.2f} s  {title_of(cell.source)}", flush=True)
        reports = ask(client, REPORTS)
        client.set_widgets_metadata()
    nbformat.write(notebook, saved_as)

    runs = []
    for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
        identity = asdict(Cell.of(cell.source, cell.execution_count))
        graphs = [graph for report in reports if report["cell"] == identity for graph in report["graphs"]]
        title = f"In[{cell.execution_count}] {title_of(cell.source)}"
        runs.append(CellRun(title, seconds[cell.id], printed_by(cell), graphs))
    reported = sum(len(report["graphs"]) for report in reports)
    found = sum(len(run.graphs) for run in runs)
    if found != reported:
        raise RuntimeError(f"{reported - found} of {reported} graphs are reported for cells that did not run")
    return runs


def ask(client: NotebookClient, source: str) -> Any:
    """Run `source` in the client's kernel as a cell that is not kept, and return what it printed, as JSON."""
    cell = nbformat.v4.new_code_cell(source)
    client.nb.cells.append(cell)
    try:
        client.execute_cell(cell, len(client.nb.cells) - 1, store_history=False)
    finally:
        client.nb.cells.pop()
    return json.loads("".join(output.text for output in cell.outputs if output.get("name") == "stdout"))


def title_of(source: str) -> str:
    """Return a cell's first line, cut to the width of the table."""
    first = source.strip().splitlines()[0]
    return first if len(first) <= 34 else first[:33] + "…"


def printed_by(cell: nbformat.NotebookNode) -> str:
    """Return what a cell printed or has as its value.

    nbcache's reports are displayed, so they are neither; the output of its line magics is left out.
    """
    if cell.source.startswith("%") and not cell.source.startswith("%%"):
        return ""
    parts = []
    for output in cell.outputs:
        if output.output_type == "stream" and output.name == "stdout":
            parts.append(output.text)
        elif output.output_type == "execute_result":
            parts.append(output.data.get("text/plain", ""))
    return "".join(parts)


def agreement(cold: CellRun, restored: CellRun) -> str:
    """Return in one word whether two runs of a cell printed the same."""
    if cold.printed != restored.printed:
        return "DIFFER"
    return "same" if cold.printed else "–"


def print_table(cold: list[CellRun], restored: list[CellRun]) -> None:
    """Print the two runs side by side, cell by cell."""
    head = (
        "cell", "cold s", "restored s", "graphs", "outcomes cold", "outcomes restored", "saved s", "numbers",
    )  # fmt: skip
    rows = [
        (
            before.title,
            f"{before.seconds:.2f}",
            f"{after.seconds:.2f}",
            f"{len(before.graphs)} → {len(after.graphs)}" if before.graphs or after.graphs else "–",
            before.outcomes,
            after.outcomes,
            f"{after.saved_seconds:.2f}" if after.graphs else "–",
            agreement(before, after),
        )
        for before, after in zip(cold, restored, strict=True)
    ]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    to_the_right = {1, 2, 3, 6}
    for row in (head, tuple("─" * width for width in widths), *rows):
        texts = (
            f"{text:>{width}}" if column in to_the_right else f"{text:<{width}}"
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join(texts).rstrip())


def faults(cold: list[CellRun], restored: list[CellRun]) -> list[str]:
    """Return what is not as it must be, in words."""
    found = []
    if not any(run.graphs for run in cold):
        found.append("the first kernel compiled nothing")
    if any(graph["outcome"] == "hit" for run in cold for graph in run.graphs):
        found.append("the first kernel had hits, so it was not cold")
    if not any(run.graphs for run in restored):
        found.append("the second kernel used no graph")
    for run in restored:
        for graph in run.graphs:
            if graph["outcome"] != "hit":
                name = f"{graph['function']} {graph['compile_id']} {graph['direction']}"
                found.append(
                    f"{run.title}: {name}: {graph['outcome']} ({graph['reason'] or 'no reason given'})"
                )
    for before, after in zip(cold, restored, strict=True):
        if before.printed != after.printed:
            found.append(f"{before.title}: printed other text\n{before.printed}\n  against\n{after.printed}")
    return found


def main() -> int:
    empty(BUILD)
    empty(TEMPORARY)
    print("First kernel, cold:")
    cold = run_notebook(BUILD / "quickstart-cold.ipynb")
    empty(TEMPORARY)
    print("\nSecond kernel, with torch's cache folder and the temp folder emptied:")
    restored_notebook = BUILD / "quickstart-restored.ipynb"
    restored = run_notebook(restored_notebook)
    shutil.rmtree(TEMPORARY)
    page, _ = HTMLExporter().from_filename(str(restored_notebook))
    (BUILD / "quickstart.html").write_text(page, encoding="utf-8")

    print()
    print_table(cold, restored)
    pairs = [(before, after) for before, after in zip(cold, restored, strict=True) if before.graphs]
    cold_seconds = sum(before.seconds for before, _ in pairs)
    restored_seconds = sum(after.seconds for _, after in pairs)
    ratio = cold_seconds / restored_seconds if restored_seconds else 0.0
    hits = sum(graph["outcome"] == "hit" for run in restored for graph in run.graphs)
    graphs = sum(len(run.graphs) for run in restored)
    print(
        f"\nCompiled cells: {cold_seconds:.1f} s cold, {restored_seconds:.1f} s restored, "
        f"{ratio:.1f} times less. Hits: {hits} of {graphs}."
    )
    print(f"Executed notebooks and the page: {os.path.relpath(BUILD)}")

    if ratio < USUAL_RATIO:
        print(f"Note: usually it is {USUAL_RATIO:g} times less or more; a busy machine is one reason.")

    wrong = faults(cold, restored)
    for fault in wrong:
        print(f"FAILED {fault}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
