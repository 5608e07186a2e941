"""What is still restored where torch has no place for one hook."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.front_door import LOAD, Environ, RunCells, printed

pytestmark = pytest.mark.compile

MOVED = """\
import inspect, functools, sys, torch
import torch._functorch._aot_autograd.autograd_cache, torch._inductor.compile_fx
from torch._functorch._aot_autograd import aot_autograd_result as results, autograd_cache as entries
from torch._inductor import codecache
def move(owner, name):
    found = inspect.getattr_static(owner, name)
    function = getattr(found, "__func__", found)
    @functools.wraps(function)
    def called(*args, **kwargs):
        return function(*args, **kwargs)
    new = inspect.Parameter("something_new", inspect.Parameter.POSITIONAL_ONLY)
    called.__signature__ = inspect.Signature([new])
    setattr(owner, name, called if found is function else type(found)(called))
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


@pytest.mark.parametrize(
    ("place", "graphs", "entries"),
    [
        ("codecache.FxGraphCache, 'load_with_key'", 2, 2),
        ("codecache.CppCodeCache, 'load_async'", 1, 1),
        ("results.GenericAOTAutogradResult, 'wrap_post_compile'", 2, 0),
        ("entries.AOTAutogradCache, '_lookup'", 2, 0),
    ],
)
def test_graphs_hit_where_one_hook_has_no_place(
    place: str,
    graphs: int,
    entries: int,
    isolated: dict[str, str],
    run_cells: RunCells,
    wipe: Callable[[Environ], None],
) -> None:
    """A graph with C++ kernels needs the hook that loads them; `x @ x` has none."""
    env = isolated | {"NBCACHE_TRACE": "off"}
    run_cells([LOAD, GRAPHS], env)
    wipe(env)

    notebook = run_cells([MOVED, f"move({place})", LOAD, GRAPHS, COUNTS], env)

    assert printed(notebook, 4).split() == [str(graphs), str(entries)]
