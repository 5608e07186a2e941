"""Guards and generated code of graphs, of misses and hits, in real kernels."""

from __future__ import annotations

import json

import pytest

from support.front_door import RunCells, printed

pytestmark = pytest.mark.compile

LOAD = "%load_ext nbcache\nimport json, gc, weakref, nbcache"
DEFINE = """import torch
class Model(torch.nn.Module):
    def forward(self, x, scale):
        return (x.sin() * scale).sum()
model = Model()
compiled = torch.compile(model)
x = torch.linspace(0, 1, 64, requires_grad=True)"""
CALL = "compiled(x, 2).backward()"
WHOLE = "%nbcache graphs 0/0 --json"
ROWS = """from nbcache.torch_bridge.graph_contents import contents_of
session = nbcache.session()
whole = [contents_of(graph, session) for graph in session.graphs]
rows = [[graph.outcome, graph.direction, each.no_guards, each.guards, each.no_code, each.code]
        for graph, each in zip(session.graphs, whole)]
print(json.dumps(rows))"""
GONE = """held = weakref.ref(model)
del model, compiled, whole
torch._dynamo.reset(); gc.collect()
print(json.dumps([held() is None, contents_of(session.graphs[0], session).no_guards]))"""
ELSEWHERE = """import shutil, os
for graph in session.graphs:
    os.unlink(graph.code_path)
print(contents_of(session.graphs[0], session).no_code)
eager = torch.compile(lambda x: x + 1, backend="aot_eager")(x)
print([contents_of(graph, session).no_code for graph in session.graphs][-1])"""


def test_guards_and_code_are_those_of_the_graph_compiled_or_hit_and_keep_nothing_alive(
    run_cells: RunCells,
) -> None:
    cells = [LOAD, DEFINE, CALL, ROWS, WHOLE, GONE, ELSEWHERE]
    first = run_cells(cells)
    again = run_cells(cells)

    for done, outcome in ((first, "miss"), (again, "hit")):
        forward, backward = json.loads(printed(done, 3))
        assert forward[:3] == [outcome, "forward", ""] and backward[:3] == [outcome, "backward", ""]
        assert any("L['scale'] == 2" in guard for guard in forward[3])
        assert "L['x']" in forward[3][0] or "L['" in forward[3][0]
        assert forward[4] == backward[4] == "" and "def call(" in forward[5] + backward[5]
        assert forward[5] != backward[5] and "sin" in forward[5]
        is_free, no_guards = json.loads(printed(done, 5))
        assert is_free and no_guards.startswith("torch no longer holds this version")
        gone, other = printed(done, 6).strip().splitlines()[:2]
        assert "no longer in torch's folder" in gone and "another backend" in other
    shown = printed(first, 4)
    assert '"guards": [' in shown and '"code_path": "/' in shown and "sin" in shown
