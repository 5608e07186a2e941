"""Ten notebooks, run four times as they are, beside the same cells on plain torch with its own warm folder.

Each prints a table: `python -m pytest -n 0 -s -m proof tests/live/test_unchanged_notebooks.py`.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from soundness.program_files import CELL

from support.front_door import LOAD, REPORTS, Environ, RunCells, graphs, printed

pytestmark = [pytest.mark.compile, pytest.mark.proof]

RUNS = 4
PLAN = "%nbcache plan --json"
COUNTS = """\
import json
from torch._dynamo.utils import counters
print(json.dumps([counters["inductor"], counters["aot_autograd"]]))
"""
NOTEBOOKS = {
    "inference": """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).eval()
fast = torch.compile(model)
# %%
with torch.no_grad():
    print(fast(torch.ones(8, 16)).sum().item())
# %%
with torch.no_grad():
    print(fast(torch.zeros(8, 16)).sum().item())
""",
    "training and evaluation": """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 1))
fast = torch.compile(model)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
# %%
for step in range(3):
    opt.zero_grad()
    loss = fast(torch.randn(128, 20)).square().mean()
    loss.backward()
    opt.step()
print(loss.item())
# %%
with torch.no_grad():
    print(fast(torch.randn(500, 20)).mean().item())
""",
    "channels last": """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
fast = torch.compile(model.to(memory_format=torch.channels_last))
def images(count):
    return torch.randn(count, 3, 12, 12).to(memory_format=torch.channels_last)
# %%
for step in range(2):
    fast(images(4)).square().mean().backward()
# %%
model.eval()
with torch.no_grad():
    print(fast(images(1)).shape, fast(images(6)).shape, fast(torch.randn(1, 3, 12, 12)).shape)
""",
    "GPT": """
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.ln1, self.ln2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(self.ln1(x)).split(C, dim=2)
        q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).contiguous().view(B, T, C))
        return x + self.mlp(self.ln2(x))
class GPT(nn.Module):
    def __init__(self, vocabulary=50, width=32, context=64):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(Block(width, 4), Block(width, 4))
        self.ln, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
    def forward(self, idx, targets=None):
        x = self.tok(idx) + self.pos(torch.arange(idx.shape[1], device=idx.device))
        logits = self.head(self.ln(self.blocks(x)))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
model = GPT()
fast = torch.compile(model)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
def batch(count):
    return torch.randint(0, 50, (count, 64)), torch.randint(0, 50, (count, 64))
# %%
for step in range(3):
    _, loss = fast(*batch(2))
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
print(loss.item())
# %%
model.eval()
with torch.no_grad():
    print(fast(*batch(1))[1].item())
# %%
idx = torch.zeros(1, 4, dtype=torch.long)
with torch.no_grad():
    for _ in range(6):
        logits, _ = fast(idx[:, -64:])
        idx = torch.cat([idx, logits[:, -1:].argmax(-1)], dim=1)
print(idx.shape)
""",
    "optimizer": """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
opt = torch.optim.Adam(model.parameters(), lr=0.01)
step = torch.compile(opt.step)
# %%
for _ in range(3):
    opt.zero_grad()
    model(torch.ones(2, 8)).sum().backward()
    step()
print(model.weight.sum().item())
""",
    "graph breaks": """
import torch
def helper(x):
    return x.sin() + 1
@torch.compile
def f(x):
    y = helper(x) * 2
    print("between")
    if y.sum() > 0:
        y = y - 1
    return y.cos()
# %%
print(f(torch.ones(5)).sum().item(), f(torch.ones(5) * 2).sum().item())
# %%
print(f(torch.ones(7)).sum().item())
""",
    "two instances": """
import torch
from torch import nn
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a, self.b = nn.Linear(6, width), nn.Linear(width, 2)
    def forward(self, x):
        return self.b(self.a(x).relu())
small, large = torch.compile(Net(8)), torch.compile(Net(24))
# %%
print(small(torch.ones(4, 6)).sum().item(), large(torch.ones(4, 6)).sum().item())
# %%
with torch.no_grad():
    print(small(torch.ones(3, 6)).sum().item(), large(torch.ones(9, 6)).sum().item())
""",
    "dynamic": """
import torch
@torch.compile(dynamic=True)
def normal(x):
    return (x - x.mean(0)) / (x.std(0) + 1e-5)
# %%
print(*(normal(torch.ones(rows, 5)).shape for rows in (4, 9, 16)))
# %%
print(normal(torch.ones(1, 5)).shape)
""",
    "max-autotune": """
import torch
torch.manual_seed(0)
w = torch.randn(64, 64)
@torch.compile(mode="max-autotune")
def f(x):
    return torch.relu(x @ w)
# %%
with torch.no_grad():
    print(f(torch.ones(32, 64)).sum().item())
# %%
with torch.no_grad():
    print(f(torch.ones(48, 64)).sum().item())
""",
    "transforms": """
import torch
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 * x
@torch.compile
def f(x):
    return Square.apply(x).sum()
@torch.compile
def per_row(x):
    return torch.func.vmap(torch.func.grad(lambda row: row.sin().sum()))(x)
# %%
x = torch.ones(4, requires_grad=True)
f(x).backward()
print(x.grad.sum().item())
# %%
print(per_row(torch.ones(3, 5)).sum().item(), per_row(torch.ones(6, 5)).sum().item())
""",
}


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a notebook, in a kernel of its own."""

    seconds: float
    """From the start of the kernel to its end."""
    hits: int
    misses: int
    """Graphs that inductor compiled."""
    autograd_misses: int
    expected_hits: int = 0
    """Hits that nbcache expected before the cells ran."""
    reported_hits: int = 0

    def __str__(self) -> str:
        return f"{self.hits:3} hit {self.misses:3} miss {self.seconds:6.1f} s"


def run(run_cells: RunCells, environ: Environ, cells: list[str]) -> Run:
    """Run cells on plain torch."""
    began = time.perf_counter()
    notebook = run_cells([*cells, COUNTS], environ)
    return _run(time.perf_counter() - began, printed(notebook, -1))


def run_with_nbcache(run_cells: RunCells, environ: Environ, cells: list[str]) -> Run:
    began = time.perf_counter()
    notebook = run_cells([LOAD, PLAN, *cells, COUNTS, REPORTS], environ)
    seconds = time.perf_counter() - began
    expected = json.loads(printed(notebook, 1))["hits"]
    hits = sum(graph["outcome"] == "hit" for graph in graphs(notebook))
    return _run(seconds, printed(notebook, -2), expected, hits)


def _run(seconds: float, counts: str, expected: int = 0, reported: int = 0) -> Run:
    inductor, autograd = json.loads(counts)
    misses = inductor.get("fxgraph_cache_miss", 0) + inductor.get("fxgraph_cache_bypass", 0)
    hits = inductor.get("fxgraph_cache_hit", 0)
    return Run(seconds, hits, misses, autograd.get("autograd_cache_miss", 0), expected, reported)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_an_unchanged_notebook_misses_nothing_that_plain_torch_hits(
    name: str, run_cells: RunCells, isolated: dict[str, str], tmp_path: Path
) -> None:
    cells = NOTEBOOKS[name].strip().split(CELL)
    path = tmp_path / "notebook.ipynb"
    saved = [nbformat.v4.new_code_cell(cell) for cell in (LOAD, PLAN, *cells)]
    nbformat.write(nbformat.v4.new_notebook(cells=saved), path)
    torchs = {**isolated, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torch")}
    ours = {**isolated, "NBCACHE_NOTEBOOK": str(path)}

    runs = [(run(run_cells, torchs, cells), run_with_nbcache(run_cells, ours, cells)) for _ in range(RUNS)]

    print(f"\n{name:24}  plain torch                 nbcache")
    for number, (plain, cached) in enumerate(runs, 1):
        print(f"{f'  run {number}':24}  {plain}   {cached}")
    assert runs[1][0].hits > 0
    for plain, cached in runs:
        assert cached.misses <= plain.misses
        assert cached.autograd_misses <= plain.autograd_misses
        assert cached.hits >= plain.hits
    assert all(cached.expected_hits == cached.reported_hits for _, cached in runs[1:])
