"""What comes after an adoption, beside it, or in the place of a trace: each answer is the one of now."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from soundness.answers import adopts, difference
from soundness.program_files import CASE, with_cases
from soundness.restarts import Pair

from nbcache.torch_bridge.torch_behavior import release, torch_version
from support.torch_versions import needs_traces

# Proofs, as in `test_trace_edits`.
pytestmark = [pytest.mark.compile, pytest.mark.proof, needs_traces]
RELEASE = release(torch_version() or "0.0")

CHANGES = """
import torch
K = 2.0
def helper(x): return x + 1
class Net(torch.nn.Module):
    scale = 3.0
    def __init__(self):
        super().__init__()
        self.lin, self.drop = torch.nn.Linear(3, 3), torch.nn.Dropout(0.5)
    def forward(self, x): return helper(self.drop(self.lin(x))) * K * self.scale
torch.manual_seed(0)
net = Net().eval()
def results(compile):
    global K, helper
    g, x, found = compile(net), torch.ones(2, 3), []
    call = lambda: found.append(g(x).detach())
    with torch.no_grad():
        call()
        K = 5.0
        call()
        before, helper = helper, lambda x: x - 1
        call()
        helper = before
        Net.scale = 7.0
        call()
        net.scale = 11.0
        call()
        del net.scale
        call()
        forward, Net.forward = Net.forward, lambda self, x: self.lin(x).sum()
        found.append(compile(net)(x))
        Net.forward = forward
        net.lin.weight.data = net.lin.weight.data * 2
        call()
        net.drop = torch.nn.Identity()
        call()
        relu, torch.nn.functional.dropout = torch.nn.functional.dropout, lambda x, *more: x * 13
        call()
        torch.nn.functional.dropout = relu
    call()
    return found
"""
RELOADED = """
import sys, torch
from pathlib import Path
folder = "FOLDER"
sys.path.insert(0, folder)
sys.dont_write_bytecode = True
import edited_module
# %%
HOW
# %%
import os
g = torch.compile(edited_module.f, mode="lite")
with torch.no_grad():
    before = g(torch.ones(2))
Path(folder, "edited_module.py").write_text("def f(x): return x * 3\\n")
os.utime(Path(folder, "edited_module.py"), (2e9, 2e9))
# %%
AGAIN
def results(compile):
    with torch.no_grad():
        return [before, torch.compile(edited_module.f, mode="lite")(torch.ones(2))]
"""
THREADS = """
import torch, threading
def f(x): return x.sin() * 2
def h(x): return x.cos() + 1
def results(compile):
    compiled, found = [compile(f), compile(h)] * 3, [None] * 6
    ready = threading.Barrier(6)
    def run(index):
        ready.wait()
        with torch.no_grad():
            found[index] = compiled[index](torch.full((3,), float(index)))
    threads = [threading.Thread(target=run, args=(each,)) for each in range(6)]
    [each.start() for each in threads]
    [each.join() for each in threads]
    return found
"""
NO_BACKWARD = """
import torch
def f(w, x): return (w * x).sin().sum()
def results(compile):
    g, w = compile(f), torch.arange(3.0, requires_grad=True)
    g(w, torch.ones(3))
    lost = g(w, torch.full((3,), 2.0))
    del lost
    loss = g(w, torch.full((3,), 3.0))
    loss.backward()
    return [loss.detach(), w.grad]
"""
TWO = """
import torch
def f(x): return x * 2
def h(x): return x * 3
def results(compile):
    with torch.no_grad():
        return [compile(f)(torch.ones(3)), compile(h)(torch.ones(3))]
"""
COUNTED = {
    "a property that counts": """
class A:
    n = 0
    @property
    def k(self):
        A.n = A.n + 1
        return A.n + 2
a = A()
def f(x): return x * a.k
def results(compile): return [compile(f)(X.clone()), torch.tensor(A.n)]
""",
    "a property that appends": """
class A:
    def __init__(self): self.log = []
    @property
    def k(self):
        self.log.append(1)
        return len(self.log)
a = A()
def f(x): return x * a.k
def results(compile): return [compile(f)(X.clone()), torch.tensor(len(a.log))]
""",
    "a property that draws": """
class M(torch.nn.Module):
    @property
    def noise(self): return torch.rand(3)
    def forward(self, x): return x + self.noise
m = M()
def results(compile):
    torch.manual_seed(5)
    return [compile(m)(X), torch.rand(3)]
""",
    "an attribute or a property": """
class M(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        self.scale = 2.0
    def forward(self, x): return x * self.scale
EDIT
m = M()
def results(compile): return [compile(m)(X.clone()), torch.tensor(m.calls)]
""",
    "an attribute or __getattr__": """
class A:
    def __init__(self): self.n = 0; self.k = 2
a = A()
EDIT
def f(x): return x * a.k
def results(compile): return [compile(f)(X.clone()), torch.tensor(a.n)]
""",
    "a list or a sequence": """
class L:
    n = 0
    def __init__(self, held): self.held = held
    def __getitem__(self, i):
        L.n += 1
        return self.held[i] + L.n
    def __len__(self): return len(self.held)
held = [1, 2]
EDIT
def f(x): return x * held[0] + len(held)
def results(compile): return [compile(f)(X.clone()), torch.tensor(L.n)]
""",
    "a dictionary or one that counts": """
class D(dict):
    n = 0
    def __getitem__(self, key):
        D.n = D.n + 1
        return dict.__getitem__(self, key) + D.n
held = {"a": 1}
EDIT
def f(x): return x * held["a"]
def results(compile): return [compile(f)(X.clone()), torch.tensor(D.n)]
""",
    "a key that is there or is made": """
import collections
held = collections.defaultdict(lambda: 5.0)
held["a"] = 1.0
EDIT
def f(x):
    n = len(held)
    return x * held["a"] + n
def results(compile): return [compile(f)(X.clone()), torch.tensor(len(held))]
""",
}
"""Programs that tell how often their own code has run, and what stands at EDIT in the second kernel."""
EDITS = {
    "an attribute or a property": """
def scale(self):
    self.calls = self.calls + 1
    return self.calls + 2.0
M.scale = property(scale, lambda self, value: None)
""",
    "an attribute or __getattr__": """
def ask(self, name):
    self.n = self.n + 1
    return self.n
del a.k
A.__getattr__ = ask
""",
    "a list or a sequence": "held = L([1, 2])",
    "a dictionary or one that counts": "held = D(a=1)",
    "a key that is there or is made": "del held['a']",
}
SEVERAL = """
import torch
K = 2.0
def f(x): return x * K
def results(compile):
    with torch.no_grad():
        return [compile(f)(torch.ones(3))]
"""
DOCTORED = """
import nbcache.traces.kernel_traces as kernel_traces
from nbcache.core.model import Artifact
original = kernel_traces.Traces._candidates
def of_another(self, call):
    key = next(key for key in self._session.cache.keys_of("trace", 5.0) if key != call.key)
    return self._session.find("trace", key)[0].content
def candidates(self, call):
    for each, is_rerun in original(self, call):
        yield Artifact("trace", call.key, WRONG), is_rerun
kernel_traces.Traces._candidates = candidates
"""
WRONG = {
    "cut": "each.content[: len(each.content) // 2]",
    "empty": "b''",
    "of another function": "of_another(self, call)",
    "with other code": "each.content.replace(b'co_consts', b'co_const')",
}
"""What lies under the key of a function in place of its trace."""


@pytest.mark.parametrize(
    "program", [CHANGES, THREADS, NO_BACKWARD], ids=["changes", "threads", "no backward"]
)
def test_whatever_happens_after_an_adoption_the_answer_is_the_one_of_now(
    program: str, both: Pair, tmp_path: Path
) -> None:
    first, second = both
    first.run(program, tmp_path / "kernels")
    found = second.run(program, tmp_path / "kernels")
    assert any(adopts(found))
    assert not difference(found, second.run(program, tmp_path / "eager", eager=True))


@pytest.mark.parametrize(
    ("how", "again"),
    [
        ("pass", "import importlib; importlib.reload(edited_module)"),
        ("%load_ext autoreload\n%autoreload 2", ""),
    ],
    ids=["reload", "autoreload"],
)
def test_what_is_reloaded_after_an_adoption_answers_as_it_is_now(
    how: str, again: str, both: Pair, tmp_path: Path
) -> None:
    program = RELOADED.replace("HOW", how).replace("AGAIN", again).replace("FOLDER", str(tmp_path))
    module = tmp_path / "edited_module.py"
    for machine in both:
        module.write_text("def f(x): return x * 2\n")
        os.utime(module, (1e9, 1e9))  # it is older than the kernel
        found = machine.run(program, tmp_path / "kernels")
    assert adopts(found)[0]
    assert [values for *_, values in found["tensors"]] == [[2.0, 2.0], [3.0, 3.0]]


@pytest.mark.parametrize("name", [*COUNTED])
def test_code_of_the_user_s_runs_as_often_as_without_traces(name: str, both: Pair, tmp_path: Path) -> None:
    program = "import torch\nX = torch.arange(1.0, 4.0)\n" + COUNTED[name]
    source = CASE + with_cases([program.replace("EDIT", text) for text in ("", EDITS.get(name, ""))])
    for case, machine in enumerate(both):
        answer = machine.run(source, tmp_path / "kernels", case=case)
        off = machine.having(NBCACHE_TRACE="off").run(source, tmp_path / "off", case=case)
        assert not difference(answer, off)


def test_what_makes_graph_breaks_errors_is_part_of_the_key(both: Pair, tmp_path: Path) -> None:
    program = """
import torch
def f(x):
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2
def results(compile):
    with torch._dynamo.error_on_graph_break(False):
        return [compile(f)(torch.ones(3))]
"""
    first, second = both
    source = CASE + with_cases([program, program.replace("break(False)", "break(True)")])
    first.run(source, tmp_path / "kernels")
    assert adopts(second.run(source, tmp_path / "kernels"))[0]
    found = second.run(source, tmp_path / "kernels", case=1)
    assert "Unsupported" in found["error"]


@pytest.mark.skipif(RELEASE < (2, 15), reason="there it changes no graph of another function")
def test_where_cuda_graphs_are_overridden_there_is_no_trace(both: Pair, tmp_path: Path) -> None:
    program = """
import torch
def f(x): return x + 1
def results(compile):
    with torch._dynamo.override_cudagraphs(fwd=False):
        return [compile(f)(torch.ones(3))]
"""
    first, second = both
    plain = program.replace("with torch._dynamo.override_cudagraphs(fwd=False)", "if True")
    source = CASE + with_cases([program, plain])
    for machine in (first, first, second):
        assert adopts(machine.run(source, tmp_path / "kernels")) == [False]
    first.run(source, tmp_path / "kernels", case=1)
    assert adopts(second.run(source, tmp_path / "kernels", case=1)) == [True]
    assert adopts(second.run(source, tmp_path / "kernels")) == [False]


def test_several_traces_under_a_key_are_each_adopted_where_they_fit(both: Pair, tmp_path: Path) -> None:
    first, second = both
    source = CASE + with_cases([SEVERAL.replace("K = 2.0", f"K = {value}") for value in (2.0, 3.0, 5.0)])
    expected = [first.run(source, tmp_path / "kernels", case=case) for case in range(3)]
    for case, answer in enumerate(expected):
        found = second.run(source, tmp_path / "kernels", case=case)
        assert adopts(found) == [True]
        assert not difference(found, answer)
    assert len({str(answer["tensors"]) for answer in expected}) == 3


@pytest.mark.parametrize("wrong", [*WRONG])
def test_a_record_that_is_not_the_function_s_own_is_not_adopted(
    wrong: str, both: Pair, tmp_path: Path
) -> None:
    first, second = both
    expected = first.run(TWO, tmp_path / "kernels")
    doctored = DOCTORED.replace("WRONG", WRONG[wrong])
    found = second.run(TWO, tmp_path / "kernels", patch=doctored)
    assert "error" not in found, found
    assert "please report it" not in str(found["notices"])
    assert not difference(found, expected)
    assert not any(adopts(found | {"notices": []}))
