"""Traces are audited, and where anything fails while one is adopted, torch traces."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from soundness.answers import ADOPTED, difference, reasons
from soundness.program_files import CASE, CELL, with_cases
from soundness.restarts import Pair

from support.torch_versions import needs_traces

# Proofs, since each takes many restarts. All workers share them, and each makes the fixtures for itself.
pytestmark = [pytest.mark.compile, pytest.mark.proof, needs_traces]


@pytest.mark.parametrize(("audit", "watched"), [("0", []), ("1", ["watched [fault]"])])
def test_a_function_without_a_trace_is_recorded_again_in_one_of_so_many_kernels(
    both: Pair, tmp_path: Path, audit: str, watched: list[str]
) -> None:
    doctored = """
import nbcache
import nbcache.traces.kernel_traces as kernel_traces
original = kernel_traces.observe
def observe(*arguments):
    nbcache.session().notice("watched", "fault")
    return original(*arguments)
kernel_traces.observe = observe
"""
    program = FUNCTION.replace("* 2 + 1", "* 2 + len(f.__doc__ or '')")
    first, second = both
    expected = first.run(program, tmp_path / "kernels")
    found = second.having(NBCACHE_AUDIT=audit).run(program, tmp_path / "kernels", patch=doctored)
    assert not difference(found, expected)
    assert found["notices"] == watched


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="3.12 tells of what runs without a profiler")
def test_nothing_is_recorded_while_somebody_profiles(both: Pair, tmp_path: Path) -> None:
    call = "found = compile(f)(torch.ones(3))"
    profiled = FUNCTION.replace(
        call,
        f"""import cProfile
        profile = cProfile.Profile()
        profile.enable()
        {call}
        profile.disable()
        called = [getattr(each.code, "co_name", "") for each in profile.getstats()]
        assert "compile_frame" in called""",
    )
    first, second = both
    program = CASE + with_cases([FUNCTION, profiled])
    first.run(program, tmp_path / "kernels", case=1)
    assert not reasons(second.run(program, tmp_path / "kernels"))[0]
    assert reasons(second.run(program, tmp_path / "kernels"))[0].startswith(ADOPTED)


def test_an_adopted_function_says_why_and_where_it_has_a_graph_break(both: Pair, tmp_path: Path) -> None:
    first, second = both
    program = """
import torch
def helper(x):
    print("in between")
    return x + 1
def f(x):
    y = x * 2
    print("between")
    y = y.sin()
    return helper(y)
def results(compile):
    with torch.no_grad():
        return [compile(f)(torch.ones(3))]
"""
    before = first.run(program, tmp_path / "kernels")
    lower = program.replace("def f", "# a comment\n\ndef f")

    found = second.run(lower, tmp_path / "kernels")
    audited = second.having(NBCACHE_TRACE="audit").run(lower, tmp_path / "kernels")

    assert [reason.startswith(ADOPTED) for reason in reasons(found)] == [True] * len(reasons(before))
    assert "traced again: its trace was audited, and agrees" in reasons(audited)
    assert [bool(each) for each in before["breaks"]] == [True, True, True]
    assert before["breaks"][0].endswith("(In[1]:7)") and found["breaks"][0].endswith("(In[1]:9)")
    words = [[each and each.partition(" (In[")[0] for each in told["breaks"]] for told in (before, found)]
    assert words[0] == words[1]


MORE = "and {} more, see %nbcache why"
EDITS_IN_WORDS = [
    ("K = 2.0", "K = 3.0", f"not stored: constant K: 2.0 before, 3.0 now; {MORE.format(1)}"),
    (
        "return x + 1",
        "return x - 1",
        (
            "not stored: helper(), In[1]:LINE, has changed; "
            "graph: 1 node differs: add.Tensor(_, 1) before, sub.Tensor(_, 1) now"
        ),
    ),
    (
        "self.gain = 0.5",
        "self.gain = 0.25",
        f"not stored: constant net.gain: 0.5 before, 0.25 now; {MORE.format(1)}",
    ),
    (
        "= 0.5",
        "= torch.tensor(0.5)",
        f"not stored: constant net.gain: 0.5 before, not a constant now; {MORE.format(2)}",
    ),
    ("helper(x):", "helper(x, more=1):", "traced again: helper(), In[1]:LINE, has changed"),
    ("class Net:", "class Net:\n    more = 1", "traced again: the global net has changed"),
    (
        "ones(3)",
        "ones(3).t()",
        "traced again: x: is_view False before, True now",
    ),
]


@pytest.mark.parametrize(("old", "new", "told"), EDITS_IN_WORDS)
def test_what_differs_is_told_in_words(old: str, new: str, told: str, both: Pair, tmp_path: Path) -> None:
    program = """
import torch
K = 2.0
def helper(x):
    return x + 1
class Net:
    def __init__(self):
        self.gain = 0.5
net = Net()
# %%
def f(x):
    return helper(x) * K + net.gain
def results(compile):
    with torch.no_grad():
        return [compile(f)(torch.ones(3))]
"""
    first, _ = both
    merged = CASE + with_cases([program, program.replace(old, new)])
    first.run(merged, tmp_path / "kernels")

    found = first.run(merged, tmp_path / "kernels", case=1)

    (reason,) = reasons(found)
    assert re.sub(r"In\[1\]:\d+", "In[1]:LINE", reason) == told


FAULTY = """
import torch
import nbcache.traces.kernel_traces as kernel_traces
import nbcache.traces.trace_rows as trace_rows
import torch._dynamo.convert_frame as convert_frame
import torch._dynamo.guards as guards
owner, name = {where}
original = getattr(owner, name)
calls = []
def fail(*args, **kwargs):
    calls.append(1)
    if len(calls) == 1:
        raise {error}
    return original(*args, **kwargs)
setattr(owner, name, fail)
"""
FUNCTION = """
import torch
def f(x):
    return x * 2 + 1
def results(compile):
    with torch.no_grad():
        found = compile(f)(torch.ones(3))
    installed = [name for name in globals() if name.startswith("__compiled_fn")]
    return [found, torch.tensor(len(installed))]
"""
STEPS = [
    "trace_rows, 'from_bytes'",
    "kernel_traces, 'check_facts'",
    "kernel_traces, 'adopt'",
    "guards.CheckFunctionManager, '__init__'",
    "kernel_traces, 'load_graph'",
    "convert_frame, 'DynamoOutput'",
    "convert_frame, 'GuardedCode'",
    "convert_frame, 'wrap_guarded_code'",
    "kernel_traces, 'count_and_record'",
]


@pytest.mark.parametrize("where", STEPS)
def test_a_fault_at_any_step_means_that_torch_traces(where: str, both: Pair, tmp_path: Path) -> None:
    first, second = both
    expected = first.run(FUNCTION, tmp_path / "kernels")

    faulty = FAULTY.format(where=where, error="OSError('no')")
    found = second.run(FUNCTION, tmp_path / "kernels", patch=faulty)

    assert not difference(found, expected)
    assert [outcome for outcome, *_ in found["graphs"]][-1] == "hit"
    assert not any(reason.startswith(ADOPTED) for *_, reason in found["graphs"])
    (notice,) = found["notices"]
    assert "this kernel uses no traces from now on" in notice and "OSError" in notice
    again = second.run(FUNCTION, tmp_path / "kernels")
    assert reasons(again)[0].startswith(ADOPTED)


def test_an_interrupt_leaves_nothing_behind_and_passes(both: Pair, tmp_path: Path) -> None:
    first, second = both
    caught = (
        "caught = []\ntry:\n    results(lambda f: torch.compile(f, mode='lite'))\n"
        "except KeyboardInterrupt:\n    caught = [n for n in globals() if n.startswith('__compiled_fn')]\n"
        "assert caught == [], caught\n"
    )
    program = f"{FUNCTION}{CELL}{caught}"
    first.run(program, tmp_path / "kernels")
    for where in STEPS:
        faulty = FAULTY.format(where=where, error="KeyboardInterrupt()")

        found = second.run(program, tmp_path / "kernels", patch=faulty)

        assert "error" not in found, (where, found)
        assert found["tensors"][0] == ["torch.float32", [3], [3.0, 3.0, 3.0]]


def test_what_the_function_itself_raises_passes_untouched(both: Pair, tmp_path: Path) -> None:
    program = """
import torch
def f(x):
    assert x.shape[0] == 3, "three rows are needed"
    return x + 1
def results(compile):
    g = compile(f)
    found = [g(torch.ones(3))]
    try:
        g(torch.ones(4))
    except AssertionError as error:
        return [*found, torch.tensor(str(error) == "three rows are needed")]
"""
    first, second = both
    expected = first.run(program, tmp_path / "kernels")
    found = second.run(program, tmp_path / "kernels")
    assert not difference(found, expected)
    assert expected["tensors"][1][2] == [1.0]


def test_two_objects_of_one_class_adopt_one_trace_each(both: Pair, tmp_path: Path) -> None:
    program = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(3, 3)
    def forward(self, x): return self.lin(x).relu()
torch.manual_seed(0)
one, other = Net(), Net()
def results(compile):
    with torch.no_grad():
        found = [compile(each)(torch.ones(2, 3)) for each in (one, other)]
        torch._dynamo.reset()
        return [*found, compile(one)(torch.ones(2, 3))]
"""
    first, second = both
    expected = first.run(program, tmp_path / "kernels")
    found = second.run(program, tmp_path / "kernels")
    assert not difference(found, expected)
    assert [reason.startswith(ADOPTED) for reason in reasons(found)] == [True] * len(expected["graphs"])
    assert not difference(found, first.run(program, tmp_path / "eager", eager=True))


def test_an_adoption_notes_in_torchs_profile_of_sizes_what_tracing_notes(both: Pair, tmp_path: Path) -> None:
    noted = tmp_path / "noted"
    program = f"""
import torch
import torch._dynamo.pgo as pgo
class Plain:
    k, gain = 5, 2.5
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.n, self.gain = torch.nn.Linear(4, 4), 7, 1.5
    def forward(self, x): return self.wide(x) * self.n * self.gain
torch.manual_seed(0)
plain, net, K, G = Plain(), Net(), 3, 4.5
L, D = [6, 7.5], {{"a": 8, "b": 9.5}}
def f(x, n, q, *args, unused=11, **kw):
    y = net(x) * n * q * plain.k * plain.gain * K * G * L[0] * L[1] * D["a"] * D["b"]
    return y * args[0] * args[1] * kw["z"] * kw["w"]
def results(compile):
    with torch.no_grad():
        found = compile(f)(torch.ones(3, 4), 2, 3.5, 12, 13.5, z=14, w=15.5)
    for code, state in pgo.get_code_state().items():
        if code.name == "f":
            told = [f"{{name}} {{entry.render()}}" for name, entry in state.automatic_dynamic.items()]
            open({str(noted)!r}, "w").write("\\n".join(sorted(told)))
    return [found]
"""
    first, second = both
    first.run(program, tmp_path / "kernels")
    expected = noted.read_text()
    noted.unlink()

    found = second.run(program, tmp_path / "kernels")

    assert reasons(found)[0].startswith(ADOPTED)
    assert noted.read_text() == expected and len(expected.splitlines()) > 12


def test_other_sizes_become_dynamic_after_an_adopted_trace_as_after_tracing(
    both: Pair, tmp_path: Path
) -> None:
    program = """
import torch
def f(x, n): return x * n
def results(compile):
    g = compile(f)
    with torch.no_grad():
        return [g(torch.ones(rows, 2), n) for rows, n in ((3, 2), (4, 5), (5, 7), (6, 9))]
"""
    first, second = both
    alone = program.replace("((3, 2), (4, 5), (5, 7), (6, 9))", "((3, 2),)")
    merged = CASE + with_cases([program, alone])
    cold = first.run(merged, tmp_path / "cold")
    first.run(merged, tmp_path / "kernels", case=1)

    found = second.run(merged, tmp_path / "kernels")

    assert reasons(found)[0].startswith(ADOPTED)
    assert len(found["graphs"]) == len(cold["graphs"]) == 2
    assert not difference(found, cold)
