"""Imports go down only: what the import-linter contracts read in the sources holds at run time, too."""

from __future__ import annotations

import importlib
import json
import pkgutil
from pathlib import Path

import nbcache
from support.front_door import RunPython

LOW = {"core", "kernel", "sharing", "storage"}
"""Packages below the bridge."""
HIGH = {"bench", "keys", "launcher", "torch_bridge", "traces", "ui"}
TOP = {"__main__", "parts"}
BUDGETS = {
    "bench": 795,
    "core": 2050,
    "kernel": 4520,
    "keys": 4105,
    "launcher": 1370,
    "sharing": 3260,
    "storage": 3075,
    "torch_bridge": 5130,
    "traces": 3345,
    "ui": 7005,
}
"""Lines that each package may have. They are lowered as code is deleted, and raised only with a reason."""
FORBIDDEN = {"IPython", "ipykernel", "ipywidgets", "redis", "torch", "traitlets", "triton"}


def low_modules() -> list[str]:
    names = (module.name for module in pkgutil.walk_packages(nbcache.__path__, "nbcache."))
    return ["nbcache", *(name for name in names if name.split(".")[1] in LOW)]


def loaded_by(run_python: RunPython, *imports: str) -> set[str]:
    """Return the top-level names of all modules that a fresh interpreter has after these imports."""
    code = f"import json, sys, {', '.join(imports)}\nprint(json.dumps(list(sys.modules)))"
    return {name.partition(".")[0] for name in json.loads(run_python(code).stdout)}


def test_every_package_is_assigned_to_a_layer_and_says_what_lives_there() -> None:
    found = {module.name: module.ispkg for module in pkgutil.iter_modules(nbcache.__path__)}
    assert {name for name, is_package in found.items() if is_package} == LOW | HIGH
    assert {name for name, is_package in found.items() if not is_package} == TOP
    packages = (each for each in pkgutil.walk_packages(nbcache.__path__, "nbcache.") if each.ispkg)
    assert not [each.name for each in packages if not importlib.import_module(each.name).__doc__]


def test_every_package_is_within_its_budget_of_lines() -> None:
    (folder,) = nbcache.__path__
    lines = {
        package: sum(len(path.read_text().splitlines()) for path in Path(folder, package).rglob("*.py"))
        for package in LOW | HIGH
    }
    assert {package: count for package, count in lines.items() if count > BUDGETS[package]} == {}


def test_low_modules_load_neither_torch_nor_anything_of_jupyter_nor_redis(run_python: RunPython) -> None:
    assert not loaded_by(run_python, *low_modules()) & FORBIDDEN


def test_importing_nbcache_loads_nothing_else_of_it(run_python: RunPython) -> None:
    code = "import sys, nbcache; print([name for name in sys.modules if name.startswith('nbcache')])"
    assert run_python(code).stdout.strip() == "['nbcache']"


def test_values_and_errors_are_imported_when_they_are_asked_for(run_python: RunPython) -> None:
    names = ["GraphRecord", "CellReport", "NbcacheError", "__version__"]
    code = f"import nbcache; print(*(getattr(nbcache, name) for name in {names}))"
    graph, report, error = "core.reports.GraphRecord", "core.reports.CellReport", "core.errors.NbcacheError"
    said = " ".join(f"<class 'nbcache.{each}'>" for each in (graph, report, error))
    assert run_python(code).stdout == f"{said} {nbcache.__version__}\n"
    assert not hasattr(nbcache, "nothing")
