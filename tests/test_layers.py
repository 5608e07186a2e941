"""Imports go down only: what the import-linter contracts read in the sources holds at run time, too."""

from __future__ import annotations

import json
import pkgutil

from conftest import RunPython

import nbcache

LOW = {
    "artifact_store",
    "availability",
    "baseline",
    "bundle",
    "canonical",
    "clearing",
    "container",
    "errors",
    "exchange",
    "files",
    "fingerprints",
    "forks",
    "format",
    "kernel_session",
    "holdings",
    "instances",
    "instructions",
    "journal",
    "key",
    "known_code",
    "local_level",
    "model",
    "named_snapshots",
    "peer",
    "prewarming",
    "provenance",
    "reasons",
    "settings",
    "shared",
    "shared_format",
    "shared_keys",
    "single_flight",
    "snapshot",
    "stores",
    "supply",
    "sweep",
    "tracking",
    "trust",
    "urls",
    "versions",
    "worker",
}
"""Layers 0 to 2, by their first name below `nbcache`."""
HIGH = {
    "__main__",
    "bench",
    "cli",
    "commands",
    "connect_magics",
    "doctor",
    "magics",
    "notebook",
    "session_magics",
    "share_magics",
    "sharing",
    "testing",
    "torch_bridge",
}
FORBIDDEN = {"IPython", "ipykernel", "ipywidgets", "redis", "torch", "traitlets", "triton"}


def low_modules() -> list[str]:
    names = (module.name for module in pkgutil.walk_packages(nbcache.__path__, "nbcache."))
    return ["nbcache", *(name for name in names if name.split(".")[1] in LOW)]


def loaded_by(run_python: RunPython, *imports: str) -> set[str]:
    """Return the top-level names of all modules that a fresh interpreter has after these imports."""
    code = f"import json, sys, {', '.join(imports)}\nprint(json.dumps(list(sys.modules)))"
    return {name.partition(".")[0] for name in json.loads(run_python(code).stdout)}


def test_every_module_is_assigned_to_a_layer() -> None:
    names = {module.name for module in pkgutil.iter_modules(nbcache.__path__)}
    assert names <= LOW | HIGH
    assert names >= LOW


def test_low_modules_load_neither_torch_nor_anything_of_jupyter_nor_redis(run_python: RunPython) -> None:
    assert not loaded_by(run_python, *low_modules()) & FORBIDDEN


def test_importing_nbcache_loads_nothing_else_of_it(run_python: RunPython) -> None:
    code = "import sys, nbcache; print([name for name in sys.modules if name.startswith('nbcache')])"
    assert run_python(code).stdout.strip() == "['nbcache']"
