"""What is still restored where torch has no place for one hook."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support.front_door import LOAD, Environ, RunCells, printed

pytestmark = pytest.mark.compile

MOVED = """\
import nbcache.core.patches as patches
check = patches.check_parameters
def move(moved):
    def checked(original, name, takes):
        if name == moved:
            raise TypeError(f"{name} takes something new")
        check(original, name, takes)
    patches.check_parameters = checked
"""
GRAPHS = """\
import torch
with torch.no_grad():
    x = torch.linspace(0, 1, 16).reshape(4, 4)
    product = torch.compile(lambda x: x @ x)
    sine = torch.compile(lambda x: (x + 1).sin())
    assert torch.allclose(product(x), x @ x) and torch.allclose(sine(x), (x + 1).sin())
"""
COUNTS = """\
from torch._dynamo.utils import counters
names = [("inductor", "fxgraph_cache_hit"), ("aot_autograd", "autograd_cache_hit")]
print(*(counters[group][name] for group, name in names))
"""


HITS = {"load_with_key": (2, 2), "load_async": (1, 1), "wrap_post_compile": (2, 0), "_lookup": (2, 0)}
"""Moved function → hits of graphs, and of AOTAutograd's entries."""


def test_graphs_hit_where_one_hook_has_no_place(
    isolated: dict[str, str], run_cells: RunCells, wipe: Callable[[Environ], None], tmp_path: Path
) -> None:
    """A graph with C++ kernels needs the hook that loads them; `x @ x` has none."""
    env = isolated | {"NBCACHE_TRACE": "off"}
    run_cells([LOAD, GRAPHS], env)
    for place, hits in HITS.items():
        wipe(env)
        store = shutil.copytree(env["NBCACHE_DIR"], tmp_path / place)

        notebook = run_cells(
            [MOVED, f"move({place!r})", LOAD, GRAPHS, COUNTS], env | {"NBCACHE_DIR": str(store)}
        )

        assert (place, printed(notebook, 4).split()) == (place, [*map(str, hits)])
