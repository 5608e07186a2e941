"""The tour and the notebooks do what they say: they are run."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import nbformat
import pytest

from nbcache.core import errors
from nbcache.core.cpu_levels import BASELINES
from nbcache.core.model import Direction, Level, Outcome
from nbcache.core.reports import CellReport, GraphRecord
from nbcache.core.settings import Settings
from nbcache.kernel.explain.diagnosis import Diagnosis, Resized, Timing
from nbcache.kernel.explain.plan import Plan
from nbcache.kernel.explain.stats import Stats, lifetime, tally
from nbcache.kernel.prewarming import Prewarming
from nbcache.kernel.reasons import FIRST_TIME
from nbcache.torch_bridge import cache_settings, environment
from nbcache.torch_bridge.cache_settings import CacheSetting
from nbcache.ui.display.reports import render_report
from nbcache.ui.display.stats import render_plan
from nbcache.ui.display.words import Check, CheckState
from nbcache.ui.verbs import COMMANDS, MAGICS, Forms
from support.front_door import REPORTS, Environ, RunCells, RunPython, outcomes, printed, shown

ROOT = Path(__file__).parents[1]


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def cells_of(name: str) -> list[str]:
    """Return the code cells of a notebook."""
    notebook = nbformat.read(ROOT / "notebooks" / name, as_version=4)
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.compile
@pytest.mark.proof
def test_the_tour_can_be_followed_word_by_word(
    with_headers: dict[str, str], run_cells: RunCells, wipe: Callable[[Environ], None]
) -> None:
    tour = re.findall(r"```python\n(.*?)```", page("getting-started.md"), re.DOTALL)
    assert len(tour) > 4

    first = run_cells([*tour, REPORTS], with_headers, forked=False)
    wipe(with_headers)
    second = run_cells([*tour, REPORTS], with_headers, forked=False)

    assert (outcomes(first), outcomes(second)) == (["miss"] * 3, ["hit"] * 3)
    assert [printed(first, index) for index in (2, 3)] == [printed(second, index) for index in (2, 3)]


@pytest.mark.compile
@pytest.mark.proof
def test_the_demo_restores_the_quickstart(isolated: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "notebooks" / "demo.py"), str(tmp_path / "demo")],
        env={**os.environ, **isolated},
        capture_output=True,
        text=True,
        check=False,
    )

    assert re.search(r"Hits: (\d+) of \1\.", done.stdout), done.stderr
    assert done.returncode == 0 and "FAILED" not in done.stderr, done.stdout + done.stderr


def test_the_demo_does_not_fail_because_the_machine_is_busy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["demo.py", str(tmp_path / "demo")])
    demo = runpy.run_path(str(ROOT / "notebooks" / "demo.py"))
    graph = {"function": "f", "compile_id": "0/0", "direction": "inference", "reason": None}
    outcomes = iter([("miss", 10.0), ("hit", 9.0), ("miss", 10.0), ("miss", 1.0)])

    def run_notebook(saved_as: Path) -> list[object]:
        outcome, seconds = next(outcomes)
        nbformat.write(nbformat.v4.new_notebook(), saved_as)
        return [demo["CellRun"]("In[1]", seconds, "7", [{**graph, "outcome": outcome, "saved_seconds": 1.0}])]

    demo["main"].__globals__["run_notebook"] = run_notebook
    assert demo["main"]() == 0
    assert "1.1 times less. Hits: 1 of 1.\n" in (said := capsys.readouterr().out)
    assert "Note: usually it is 5 times less or more" in said
    assert demo["main"]() == 1
    assert "FAILED In[1]: f 0/0 inference: miss" in capsys.readouterr().err


@pytest.mark.compile
@pytest.mark.proof
def test_the_sharing_notebook_runs_and_the_colleague_compiles_nothing(
    with_headers: dict[str, str], run_cells: RunCells
) -> None:
    cells = cells_of("sharing.ipynb")

    done = run_cells(cells, with_headers, forked=False)

    def said(word: str) -> str:
        """Return what the last cell with this word in it printed."""
        return printed(done, max(index for index, cell in enumerate(cells) if word in cell))

    assert "is not trusted here" in said('"verify"')
    assert "1 of 1 graph hit" in said("--require-hit")
    if not environment.lacking(BASELINES["x86-64-v3"]):
        assert "for any x86-64-v3 CPU" in said('"inspect"')
    assert "nbcache doctor" in shown(done, -1)


@pytest.mark.compile
@pytest.mark.proof
def test_the_notebook_on_misses_runs_and_each_is_explained(
    with_headers: dict[str, str], run_cells: RunCells
) -> None:
    cells = cells_of("why.ipynb")
    where = {"NBCACHE_NOTEBOOK": str(ROOT / "notebooks" / "why.ipynb")}

    done = run_cells(cells, {**with_headers, **where}, forked=False)

    def said(word: str, after: int = 0) -> str:
        """Return what the first cell with this word in it showed, or one `after` it."""
        return shown(done, after + next(index for index, cell in enumerate(cells) if word in cell))

    assert "input x: f32[32, 64] before, f32[16, 64] now" in said("embeddings[:16]")
    assert "so far: 2 of at most 8 versions" in said("embeddings[:16]", after=1)
    assert "constant lr: 0.001 before, 0.0003 now" in said("embeddings, 0.0003")
    assert "next: make it a tensor" in said("embeddings, 0.0003", after=1)
    assert "0 of 1 hits" in said("torch.tensor(lr)")  # one graph for three learning rates
    limit = said('backend="eager"')
    assert "bypass: this backend does not use torch's caches" in limit
    assert "has 7 of at most 8 versions" in limit and "has 8 versions, the limit" in limit
    broken = said("y.norm()", after=1)
    assert "graph break: an `if`, `while` or `assert`" in broken and "fell into 2 graphs" in broken
    assert "of 7 graphs expected to hit" in said("%nbcache plan")
    assert "is not trusted here" in printed(done, next(i for i, cell in enumerate(cells) if "except" in cell))
    assert "next: trust who signed it: %nbcache trust" in said("%nbcache why shared")
    assert "refused: theirs.nbcache" in said("%nbcache stats")


@pytest.mark.compile
@pytest.mark.proof
def test_the_notebook_on_panels_runs_and_keeps_them_as_static_html(
    with_headers: dict[str, str], run_cells: RunCells
) -> None:
    cells = cells_of("panel.ipynb")

    done = run_cells(cells, with_headers, forked=False)

    index = cells.index("%nbcache panel")
    assert shown(done, index).startswith("nbcache panel") and "GRAPHS" in shown(done, index)
    assert "2 graphs · 0 of 2 hits" in shown(done, index + 1)
    graphs, timeline = (
        shown(done, cells.index("%nbcache graphs")),
        shown(done, cells.index("%nbcache timeline")),
    )
    assert "3 graphs" in graphs and "SPACE" not in graphs
    assert timeline.startswith("nbcache timeline") and "step" in timeline
    assert "SNAPSHOT" in shown(done, -1) and "GRAPHS" not in shown(done, -1)
    assert "widget-view" not in json.dumps(done) and "widgets" not in done.metadata


@pytest.mark.compile
@pytest.mark.proof
def test_the_team_notebook_runs_shows_no_password_and_leaves_nothing_behind(
    isolated: dict[str, str], run_cells: RunCells
) -> None:
    cells = cells_of("team_cache.ipynb")  # what they claim they assert themselves

    done = run_cells([*cells, "print(json.dumps([password, str(work)]))"], isolated, forked=False)

    password, work = json.loads(printed(done, -1))
    assert password not in json.dumps(done.cells[:-1])
    assert not Path(work).exists()


def test_make_leaves_the_package_index_to_pip_and_says_where_torch_is_of_another_build(
    run_python: RunPython,
) -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "--index-url" not in makefile and "https://" not in makefile and "--isolated" not in makefile

    other = "import runpy, types, sys; sys.modules['torch'] = torch = types.ModuleType('torch');"
    for version, cuda, status in (("2.13.0+cpu", None, 1), ("2.13.0+cu130", "13.0", 0)):
        script = f"torch.__version__ = {version!r}; torch.version = types.SimpleNamespace(cuda={cuda!r});"
        run = f"runpy.run_path({str(ROOT / 'tests' / 'gpu' / 'built_for_cuda.py')!r})"
        done = run_python(other + script + run, check=False)
        assert done.returncode == status
        assert ("brought torch 2.13.0+cpu" in done.stderr) == bool(status)


def test_the_docs_name_every_json_field_and_no_other() -> None:
    graph = GraphRecord("f", "0/0", Direction.FORWARD, Outcome.MISS)
    calls = Timing((1.0,))
    diagnosis = Diagnosis("f(x)", compiled=calls).to_json()
    json = page("json.md")
    stats = Stats(tally([graph]), (), (), (), 0.0, lifetime([]), lifetime([])).to_json()
    plan = render_plan(Plan((), 0), "n.ipynb").data
    assert plan is not None
    for title, fields in (
        ("Graph", graph.to_json()),
        ("Report of a cell", CellReport(None, (graph,), 0.0).to_json()),
        ("Stats", {**stats["session"], **stats["notebook"]}),
        ("Plan", plan),
        ("Diagnosis", diagnosis),
        ("Mode", diagnosis["modes"][0]),
        ("Other size", Resized(2).to_json()),
        ("Check", Check("torch", CheckState.OK, "2.13.0").to_json()),
        ("Setting", asdict(CacheSetting("save", "on", "default", "store compiled code"))),
        ("Prewarm", Prewarming(lambda: iter(()), lambda *_: None).to_json()),
    ):
        table = json.partition(f"**{title}**")[2].partition("\n**")[0]
        rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(fields)


def test_the_picture_in_the_readme_has_the_words_of_the_present_reports() -> None:
    miss = GraphRecord("Sequential", "0/0", Direction.INFERENCE, Outcome.MISS, reason=FIRST_TIME, operators=4)
    miss = replace(miss, kernels=1, kernels_compiled=1, seconds={"inductor": 9.5, "total": 9.5})
    hit = replace(miss, outcome=Outcome.HIT, reason=None, level=Level.L1, source="local store")
    hit = replace(hit, kernels_compiled=0, seconds={"load": 0.3, "total": 0.3}, saved_seconds=9.0)

    def words(text: str) -> str:
        return re.sub(r"[\d.]+", "0", " ".join(text.split()))

    seen = words((ROOT / "docs" / "images" / "restart.txt").read_text())
    for graph in (miss, hit):
        assert words(render_report(CellReport(None, (graph,), 1.0), stored=True).text) in seen


def docs_table(forms: Forms, command: str) -> str:
    """Return forms as a table in Markdown; `command` stands before each: `%nbcache`, `nbcache`."""
    rows = [
        "| `{} {}` | {} |".format(command, form.replace("|", r"\|"), text) for form, text in forms.items()
    ]
    return "\n".join(["| command | what it does |", "| --- | --- |", *rows])


def test_the_docs_explain_the_word_of_every_notice_and_every_error() -> None:
    slugs = set()
    for path in (ROOT / "nbcache").rglob("*.py"):
        shows = {"notice", "_notice", "_say"} | ({"note", "say"} if "live" in path.parts else set())
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in shows and len(node.args) == 2:
                parts = ast.walk(node.args[1])
                slugs |= {part.value for part in parts if isinstance(part, ast.Constant)}
    names = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and kind.__module__ == errors.__name__
    }

    _, notices, after = re.split(r"## (?:Notices|Errors)\n", page("troubleshooting.md"))
    assert slugs == set(re.findall(r"^\| `\[([a-z-]+)\]`", notices, re.MULTILINE))
    rows = re.findall(r"^\| (`[A-Z].*?) \|", after, re.MULTILINE)
    assert names - {"NbcacheError"} == {name.strip("`") for row in rows for name in row.split(", ")}


def test_the_docs_have_the_table_of_verbs() -> None:
    magics, commands = page("commands.md").split("\n## In a terminal\n")
    assert docs_table(MAGICS, "%nbcache") in magics and docs_table(COMMANDS, "nbcache") in commands


def test_the_docs_name_every_setting_and_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|([^|]*)\|", page("settings.md"), re.MULTILINE)
    settings = Settings()

    assert [row[0] for row in rows] == settings.names()
    for name, variable, default in rows:
        assert variable == f"NBCACHE_{name.upper()}"
        shown = settings.text(name).replace(str(Path.home()), "~")
        assert default.strip(" `") == shown


def test_the_docs_name_every_cache_setting_of_torch() -> None:
    names = re.findall(r"^\| `(TORCH\w+)` \|", page("settings.md"), re.MULTILINE)

    assert sorted(names) == sorted(cache_settings.NAMES)
