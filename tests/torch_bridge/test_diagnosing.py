"""The state that a diagnosed call changes is restored, and results are compared: all eager."""

from __future__ import annotations

import contextlib
import functools
import random
from collections import Counter, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from nbcache.kernel.explain.diagnosis import Agreement, Comparison
from nbcache.torch_bridge.call_state import State, process_state, seed_all
from nbcache.torch_bridge.diagnosing import (
    Call,
    _with_own_code,
    _without_graph,
    compare,
    original,
    parts_of,
)

pytestmark = pytest.mark.compile

model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
generator = torch.Generator()
unrelated = torch.zeros(2)
batches = (torch.ones(2) for _ in range(9))
history: list[float] = []
counter: Counter[str] = Counter()
calls = 0


class Slotted:
    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0


slotted = Slotted()


class Trainer:
    def __init__(self) -> None:
        self.model = model
        self.steps = 0

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return train(x)


trainer = Trainer()


def predict(x: torch.Tensor) -> torch.Tensor:
    return model(x)  # type: ignore[no-any-return]


def train(x: torch.Tensor) -> torch.Tensor:
    global calls
    calls += 1
    counter["calls"] += 1
    slotted.calls += 1
    optimizer.zero_grad()
    loss = predict(x).square().mean() + torch.rand((), generator=generator)
    loss.backward()
    optimizer.step()
    scheduler.step()
    history.append(loss.item())
    return loss


@torch.no_grad()
def decorated(x: torch.Tensor) -> torch.Tensor:
    history.append(1.0)
    return predict(x)


def enclosing() -> Any:
    inner, count = nn.BatchNorm1d(4), 0

    def enclosed(x: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        return inner(x) + count  # type: ignore[no-any-return]

    return enclosed


def changeable() -> list[object]:
    parameters: list[object] = [(each.tolist(), each.grad) for each in model.parameters()]
    buffers = [each.tolist() for each in model.buffers()]
    state = [history, counter, slotted.calls, calls, trainer.steps, optimizer.state, scheduler.last_epoch]
    return [*parameters, buffers, *state, generator.get_state().tolist()]


FUNCTIONS: dict[str, Any] = {
    "a function": lambda: train,
    "a decorated function": lambda: decorated,
    "a method": lambda: trainer.step,
    "a partial function": lambda: functools.partial(train),
    "a compiled function": lambda: original(torch.compile(train, backend="eager")),
    "a list of functions": lambda: lambda x: [function(x) for function in [train, decorated]],
    "a module": lambda: model,
    "a function with a closure": enclosing,
}


@pytest.mark.filterwarnings("ignore:.*lr_scheduler")
@pytest.mark.filterwarnings("ignore:.*optimizer.step")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_a_call_changes_is_restored_and_it_runs_alike_again(name: str) -> None:
    x, function = torch.arange(32.0).reshape(8, 4).requires_grad_(), FUNCTIONS[name]()
    before, results = repr(changeable()), []
    state = State({"f": function, "arguments": (x,)})
    for _ in range(2):
        seed_all(0)
        results.append(parts_of(function(x), state.tensors))
        assert state.restore() == 0

    assert repr(changeable()) == before
    assert x.grad is None
    assert state.unsaved == {}
    assert compare(*results).agreement is Agreement.EQUAL
    if name == "a function":
        assert {"output", "model.0.weight.grad", "model.1.running_mean"} <= results[0].keys()
    if name == "a module":
        assert {"f.0.weight", "f.1.running_mean", "arguments[0]"} <= state.tensors.keys()


def test_tensors_that_the_call_does_not_reach_are_not_copied() -> None:
    def with_attribute(x: Any) -> Any:
        return x.unrelated

    state = State({"train": train, "named": with_attribute, "arguments": ()})

    assert not any(tensor is unrelated for tensor in state.tensors.values())


def test_gradients_and_values_are_restored_in_place_and_graphs_stay_valid() -> None:
    x = torch.ones(2, requires_grad=True)
    x.grad = gradient = torch.ones(2)
    y = torch.ones(2)
    graph = (x * y).sum()
    state = State({"x": x, "y": y})
    (x * 3).sum().backward()
    y.mul_(2)
    state.restore()

    assert x.grad is gradient and x.grad.tolist() == [1, 1] and y.tolist() == [1, 1]
    graph_of_clone = (x * y.clone()).sum()
    graph_of_clone.backward()
    assert graph.item() == 2


def test_arrays_of_numpy_are_restored_wherever_the_call_reaches_them() -> None:
    array, constant = numpy.arange(6.0).reshape(2, 3), numpy.ones(2)
    constant.flags.writeable = False
    objects = numpy.array([[1], "a"], dtype=object)

    def changes(rows: Any) -> None:
        rows[:] = numpy.nan
        objects[:] = None

    state = State({"f": changes, "arguments": (array[1], constant)})
    changes(array[1])
    assert numpy.isnan(array[1]).all() and state.restore() == 0

    assert array.tolist() == [[0, 1, 2], [3, 4, 5]] and objects.tolist() == [[1], "a"]
    assert constant.tolist() == [1, 1] and state.unsaved == {}


def test_what_cannot_be_restored_is_named() -> None:
    def reads(x: torch.Tensor) -> torch.Tensor:
        return x + next(batches)

    assert State({"f": reads, "arguments": ()}).unsaved == {"batches": "generator"}


def test_code_is_the_diagnosis_own_and_compiled_functions_are_measured_by_their_originals() -> None:
    twin = _with_own_code(train)
    assert twin.__code__ == train.__code__ and twin.__code__ is not train.__code__
    assert twin.__globals__ == train.__globals__ and twin.__globals__ is not train.__globals__
    bound = _with_own_code(trainer.step)
    assert bound.__self__ is trainer and bound.__func__.__code__ is not Trainer.step.__code__

    assert original(torch.compile(model, backend="eager")) is model
    assert original(torch.compile(train, backend="eager")) is train
    disabled = torch.compiler.disable(train)
    assert original(disabled) is disabled
    one, other = (_with_own_code(nn.functional.softmax) for _ in range(2))
    assert one.__code__ is not other.__code__ and one.__code__.co_name == "softmax"


def test_arguments_keep_their_values_and_leave_their_graphs() -> None:
    within = torch.ones(2, requires_grad=True) * 2
    (argument,) = Call("f(x)", "f", predict, (within,)).with_tensors(_without_graph).args

    assert argument.is_leaf and argument.requires_grad and argument.data_ptr() == within.data_ptr()


Pair = namedtuple("Pair", "first second")


@dataclass
class Answer:
    logits: torch.Tensor
    rest: Any = None


def compared(eager: Any, compiled: Any) -> Comparison:
    return compare(parts_of(eager, {}), parts_of(compiled, {}))


def test_results_are_compared_wherever_they_are() -> None:
    one, two = torch.ones(3, 4), torch.ones(3, 4)
    two[1, 2] += 0.5

    for wrap, place in (
        (lambda value: value, "output"),
        (lambda value: {"a": [0, value]}, "output['a'][1]"),
        (lambda value: Pair(1, value), "output.second"),
        (lambda value: Answer(value), "output.logits"),
    ):
        comparison = compared(wrap(one), wrap(two))
        assert comparison.place == place and comparison.agreement is Agreement.DIFFERENT
        assert "Greatest absolute difference: 0.5 at index (1, 2)" in comparison.message


def test_the_measure_is_what_torch_testing_allows() -> None:
    nan, inf = float("nan"), float("inf")
    ones = torch.ones(4)
    for dtype, off in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2), (torch.float64, 1e-7)):
        near = torch.full((4,), 1 + off, dtype=dtype)
        assert compared(ones.to(dtype), near).agreement is Agreement.USUAL
        torch.testing.assert_close(near, ones.to(dtype))
    assert compared(ones, ones + 1e-4).agreement is Agreement.LARGER
    assert compared(1.0, 1.0 + 1e-6).agreement is Agreement.USUAL
    assert compared(torch.tensor([nan, inf]), torch.tensor([nan, inf])).agreement is Agreement.EQUAL
    for eager, compiled in (
        (torch.tensor([nan, 1]), torch.tensor([0.0, 1])),
        (torch.tensor([inf, 1]), torch.tensor([9.0, 1])),
        (torch.arange(3), torch.arange(3) + 1),
        (ones > 0, ones < 0),
        (True, False),
    ):
        assert compared(eager, compiled).agreement is Agreement.DIFFERENT
    for eager, compiled, place, message in (
        (ones, torch.ones(3), "output", "attribute 'shape' do not match: torch.Size([3]) != torch.Size([4])"),
        (ones, ones.double(), "output", "attribute 'dtype' do not match: torch.float64 != torch.float32"),
        ({"a": 1}, {"b": 1}, "output['a']", "only the eager call has it"),
        (1, torch.tensor(1.0), "output", "torch.float32 != torch.int64"),
    ):
        comparison = compared(eager, compiled)
        assert comparison.agreement is Agreement.DIFFERENT
        assert comparison.place == place and message in comparison.message


def test_a_gpus_random_stream_that_the_call_creates_begins_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams: dict[int, torch.Tensor] = {}
    fake: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "is_initialized": lambda: bool(streams),
        "init": lambda: streams.setdefault(0, torch.tensor([7])),
        "get_rng_state": lambda device: streams[0].clone(),
        "set_rng_state": lambda state, device: streams.update({0: state}),
        "manual_seed_all": lambda seed: streams.update({0: torch.tensor([seed])}),
    }
    for name, function in fake.items():
        monkeypatch.setattr(torch.cuda, name, function)

    with process_state():
        seed_all(0)
        torch.cuda.init()  # as a call that makes a tensor there
        torch.cuda.manual_seed_all(1)

    assert streams[0].tolist() == [7]


def test_random_streams_the_gradient_mode_and_the_profile_are_put_back() -> None:
    from torch._dynamo import pgo

    def now() -> Iterator[object]:
        yield torch.get_rng_state().tolist()
        yield random.getstate()
        yield numpy.random.get_state()[1].tolist()  # type: ignore[index,union-attr]
        yield torch.is_grad_enabled()
        yield id(pgo._CODE_STATE), id(pgo._INIT_CODE_STATE)

    before, drawn = [*now()], []
    with contextlib.suppress(KeyboardInterrupt), process_state():
        for _ in range(2):
            seed_all(0)
            drawn.append((torch.rand(1).item(), random.random(), numpy.random.rand()))
        torch.set_grad_enabled(False)
        raise KeyboardInterrupt
    assert [*now()] == before
    assert drawn[0] == drawn[1]
