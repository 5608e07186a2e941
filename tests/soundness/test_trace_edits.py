"""Whatever is edited between two kernels, no function answers by a trace that does not fit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from soundness.attacked import HELD, MENDED
from soundness.attacks import ATTACKS
from soundness.eighth_attack import EIGHTH
from soundness.eleventh_attack import ELEVENTH
from soundness.ninth_attack import NINTH
from soundness.restarts import Restarts
from soundness.seventh_attack import SEVENTH
from soundness.tenth_attack import TENTH
from soundness.test_edits import difference, edited
from soundness.traced import PARTLY, TRACED, UNTRACED

from support.torch_versions import needs_traces

# Proofs, since each row takes many restarts. All workers share them, and each makes the fixtures for itself.
pytestmark = [pytest.mark.compile, pytest.mark.proof, needs_traces]

ADOPTED = "not traced: "
AGREES = "traced again: its trace was audited, and agrees"
TOLD_OF_COMPILING = ("is left to Python, nothing of it is compiled", "of at most 8 versions: one more")
"""In notices that tell of functions and not of faults."""
WRONG_IN_TORCH = {
    *("class by an attrgetter", "wraps stack"),  # in 2.15
    *(name for name in TENTH if name.startswith(("a protocol", "a method"))),  # in 2.13
}
"""Programs that torch alone answers wrongly."""
ATTACKED = {
    "held": HELD,
    "mended": MENDED,
    "seventh": SEVENTH,
    "eighth": EIGHTH,
    "ninth": NINTH,
    "tenth": TENTH,
    "eleventh": ELEVENTH,
}


def reasons(answer: dict[str, Any]) -> list[str]:
    """Return what is told of each forward graph, where nothing went wrong."""
    assert "error" not in answer, answer["error"]
    told = [each for each in answer["notices"] if not any(words in each for words in TOLD_OF_COMPILING)]
    assert not told, told
    return [reason for _, direction, reason in answer["graphs"] if direction != "backward"]


@pytest.mark.parametrize("name", [*TRACED])
def test_a_function_is_not_traced_again_unless_its_answer_may_be_another(
    name: str, both: tuple[Restarts, Restarts], tmp_path: Path
) -> None:
    subject = TRACED[name]
    folder = tmp_path / "kernels"
    first, second = both
    before = first.run(subject.source, folder)
    assert not difference(before, first.run(subject.source, tmp_path / "eager", eager=True))
    again = second.run(subject.source, folder)
    assert not difference(again, before)
    assert [reason.startswith(ADOPTED) for reason in reasons(again)] == [True] * len(reasons(before))

    problems = []
    for number, edit in enumerate((*subject.changes, *subject.same)):
        source = edited(subject.source, edit)
        found = second.run(source, folder)
        expected = second.run(source, tmp_path / "eager", eager=True)
        if differs := difference(found, expected):
            problems.append((edit, differs, found.get("graphs")))
        elif number >= len(subject.changes) and not all(each.startswith(ADOPTED) for each in reasons(found)):
            problems.append((edit, "traced again", found["graphs"]))
    assert not problems


@pytest.mark.parametrize("name", [*TRACED])
def test_what_is_stored_is_what_another_process_traces(
    name: str, both: tuple[Restarts, Restarts], tmp_path: Path
) -> None:
    first, second = both
    before = first.run(TRACED[name].source, tmp_path / "kernels")

    audited = second.having(NBCACHE_TRACE="audit").run(TRACED[name].source, tmp_path / "kernels")

    assert [*map(str, reasons(audited))] == [AGREES] * len(reasons(before))


@pytest.mark.parametrize(
    "name", [f"{which}: {name}" for which, subjects in ATTACKED.items() for name in subjects]
)
def test_what_an_attack_has_tried_gets_no_answer_of_before(
    name: str, both: tuple[Restarts, Restarts], tmp_path: Path
) -> None:
    which, _, name = name.partition(": ")
    subject = ATTACKED[which][name]
    first, second = both
    first.run(subject.source, tmp_path / "kernels")
    for number, edit in enumerate(((), *subject.changes, *subject.same)):
        source = edited(subject.source, edit)
        found = second.run(source, tmp_path / "kernels")
        if name in WRONG_IN_TORCH:
            expected = second.having(NBCACHE_TRACE="off").run(source, tmp_path / str(number))
        else:
            expected = second.run(source, tmp_path / "eager", eager=True)
        assert not difference(found, expected), edit


def test_an_audit_that_finds_a_difference_removes_the_trace_and_uses_none(
    both: tuple[Restarts, Restarts], tmp_path: Path
) -> None:
    doctored = """
import dataclasses
import nbcache.torch_bridge.traces.reading as reading
original = reading.from_bytes
def with_fewer_guards(content):
    trace = original(content)
    return dataclasses.replace(trace, guards=trace.guards[:-1])
reading.from_bytes = with_fewer_guards
# %%
"""
    first, second = both
    expected = first.run(FUNCTION, tmp_path / "kernels")

    found = second.having(NBCACHE_TRACE="audit").run(doctored + FUNCTION, tmp_path / "kernels")

    assert not difference(found, expected)
    assert reasons({**found, "notices": []}) == [
        "traced again: its trace was audited, and differs: its guards"
    ]
    (notice,) = found["notices"]
    assert "the stored trace of f() is not what torch traces now: its guards differ" in notice
    assert not any(each.startswith(ADOPTED) for each in reasons(second.run(FUNCTION, tmp_path / "kernels")))
    assert reasons(second.run(FUNCTION, tmp_path / "kernels"))[0].startswith(ADOPTED)


@pytest.mark.parametrize(("tries", "watched"), [("float('inf')", []), ("1", ["watched"])])
def test_what_has_no_trace_is_recorded_in_vain_in_one_kernel_of_so_many_alone(
    both: tuple[Restarts, Restarts], tmp_path: Path, tries: str, watched: list[str]
) -> None:
    doctored = f"""
import nbcache
import nbcache.torch_bridge.traces.lane as lane
lane._KERNELS_PER_TRY = {tries}
original = lane.watching
def watching(*arguments):
    nbcache.session().notice("watched")
    return original(*arguments)
lane.watching = watching
# %%
"""
    program = FUNCTION.replace("* 2 + 1", "* 2 + len(f.__doc__ or '')")
    first, second = both
    expected = first.run(program, tmp_path / "kernels")
    found = second.run(doctored + program, tmp_path / "kernels")
    assert not difference(found, expected)
    assert found["notices"] == watched


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="3.12 tells of what runs without a profiler")
def test_nothing_is_recorded_while_somebody_profiles(both: tuple[Restarts, Restarts], tmp_path: Path) -> None:
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
    first.run(profiled, tmp_path / "kernels")
    assert not reasons(second.run(FUNCTION, tmp_path / "kernels"))[0]
    assert reasons(second.run(FUNCTION, tmp_path / "kernels"))[0].startswith(ADOPTED)


def test_an_adopted_function_says_why_and_where_it_has_a_graph_break(
    both: tuple[Restarts, Restarts], tmp_path: Path
) -> None:
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

    assert [reason.startswith(ADOPTED) for reason in reasons(found)] == [True] * len(reasons(before))
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
            "not stored: helper(), In[1]:3, has changed; "
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
    ("helper(x):", "helper(x, more=1):", "traced again: helper(), In[1]:3, has changed"),
    ("class Net:", "class Net:\n    more = 1", "traced again: the global net has changed"),
    (
        "ones(3)",
        "ones(3).t()",
        "traced again: x is another kind of tensor than before (its shape, type, layout, device or gradient)",
    ),
]


@pytest.mark.parametrize(("old", "new", "told"), EDITS_IN_WORDS)
def test_what_differs_is_told_in_words(
    old: str, new: str, told: str, both: tuple[Restarts, Restarts], tmp_path: Path
) -> None:
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
    first.run(program, tmp_path / "kernels")

    found = first.run(program.replace(old, new), tmp_path / "kernels")

    (reason,) = reasons(found)
    assert reason == told


@pytest.mark.parametrize("name", [*PARTLY, *UNTRACED, *ATTACKS])
def test_a_function_that_reads_what_no_fact_tells_is_traced_again(
    name: str, both: tuple[Restarts, Restarts], tmp_path: Path
) -> None:
    subject = (PARTLY | UNTRACED | ATTACKS)[name]
    first, second = both
    first.run(subject.source, tmp_path / "kernels")

    for edit in ((), *subject.changes):
        source = edited(subject.source, edit)
        found = second.run(source, tmp_path / "kernels")
        assert name not in UNTRACED or not any(each.startswith(ADOPTED) for each in reasons(found))
        assert not difference(found, second.run(source, tmp_path / "eager", eager=True)), edit


FAULTY = """
import torch
import nbcache.torch_bridge.traces.lane as lane
import nbcache.torch_bridge.traces.reading as reading
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
# %%
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
    "reading, 'from_bytes'",
    "lane, 'checked'",
    "lane, 'adopted'",
    "guards.CheckFunctionManager, '__init__'",
    "lane, 'loaded'",
    "convert_frame, 'DynamoOutput'",
    "convert_frame, 'GuardedCode'",
    "convert_frame, 'wrap_guarded_code'",
    "lane, 'count_and_record'",
]


@pytest.mark.parametrize(
    "where",
    STEPS,
)
def test_a_fault_at_any_step_means_that_torch_traces(
    where: str, both: tuple[Restarts, Restarts], tmp_path: Path
) -> None:
    first, second = both
    expected = first.run(FUNCTION, tmp_path / "kernels")

    found = second.run(FAULTY.format(where=where, error="OSError('no')") + FUNCTION, tmp_path / "kernels")

    assert not difference(found, expected)
    assert [outcome for outcome, *_ in found["graphs"]][-1] == "hit"
    assert not any(reason.startswith(ADOPTED) for *_, reason in found["graphs"])
    (notice,) = found["notices"]
    assert "functions are traced as ever from now on" in notice and "OSError" in notice
    again = second.run(FUNCTION, tmp_path / "kernels")
    assert reasons(again)[0].startswith(ADOPTED)


def test_an_interrupt_leaves_nothing_behind_and_passes(
    both: tuple[Restarts, Restarts], tmp_path: Path
) -> None:
    first, second = both
    first.run(FUNCTION, tmp_path / "kernels")
    caught = (
        "try:\n    results(lambda f: torch.compile(f, mode='lite'))\n"
        "except KeyboardInterrupt:\n    caught = [n for n in globals() if n.startswith('__compiled_fn')]\n"
        "assert caught == [], caught\n"
    )
    for where in STEPS:
        faulty = FAULTY.format(where=where, error="KeyboardInterrupt()")

        found = second.run(f"{faulty}{FUNCTION}# %%\n{caught}", tmp_path / "kernels")

        assert "error" not in found, (where, found)
        assert found["tensors"][0] == ["torch.float32", [3], [3.0, 3.0, 3.0]]


def test_what_the_function_itself_raises_passes_untouched(
    both: tuple[Restarts, Restarts], tmp_path: Path
) -> None:
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


def test_two_objects_of_one_class_adopt_one_trace_each(
    both: tuple[Restarts, Restarts], tmp_path: Path
) -> None:
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


def test_an_adoption_notes_in_torchs_profile_of_sizes_what_tracing_notes(
    both: tuple[Restarts, Restarts], tmp_path: Path
) -> None:
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
    both: tuple[Restarts, Restarts], tmp_path: Path
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
    cold = first.run(program, tmp_path / "cold")
    alone = program.replace("((3, 2), (4, 5), (5, 7), (6, 9))", "((3, 2),)")
    first.run(alone, tmp_path / "kernels")

    found = second.run(program, tmp_path / "kernels")

    assert reasons(found)[0].startswith(ADOPTED)
    assert len(found["graphs"]) == len(cold["graphs"]) == 2
    assert not difference(found, cold)
