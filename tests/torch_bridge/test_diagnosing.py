"""Copies that a call runs on, how results compare, and what is put back: all eager."""

from __future__ import annotations

import contextlib
import functools
import random
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from nbcache.explain.diagnosis import Agreement, Comparison
from nbcache.torch_bridge.diagnosing.copies import Call, copied, of_tensor, original
from nbcache.torch_bridge.diagnosing.kept import kept, seeded
from nbcache.torch_bridge.diagnosing.results import compared, parts_of

pytestmark = pytest.mark.compile

model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
batches = (torch.ones(2) for _ in range(9))
history: list[float] = []
calls = 0


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
    optimizer.zero_grad()
    loss = predict(x).square().mean()
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
    inner = nn.BatchNorm1d(4)

    def enclosed(x: torch.Tensor) -> torch.Tensor:
        return inner(x)  # type: ignore[no-any-return]

    return enclosed, inner


def changeable() -> list[object]:
    held: list[object] = [(each.tolist(), each.grad) for each in model.parameters()]
    return [
        *held,
        [each.tolist() for each in model.buffers()],
        history,
        calls,
        trainer.steps,
        optimizer.state,
    ]


FUNCTIONS: dict[str, Any] = {
    "a function": lambda: train,
    "a decorated function": lambda: decorated,
    "a method": lambda: trainer.step,
    "a partial function": lambda: functools.partial(train),
    "a compiled function": lambda: torch.compile(train, backend="eager"),
    "a module": lambda: model,
    "a compiled module": lambda: torch.compile(model, backend="eager"),
    "a function with a closure": lambda: enclosing()[0],
}


@pytest.mark.filterwarnings("ignore:.*lr_scheduler")
@pytest.mark.filterwarnings("ignore:.*optimizer.step")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_nothing_changes_that_a_call_works_on_and_copies_run_alike(name: str) -> None:
    x = torch.arange(32.0).reshape(8, 4).requires_grad_()
    before, results = repr(changeable()), []
    for _ in range(2):
        copy = copied(Call("f(x)", "f", FUNCTIONS[name](), (x,)))
        with torch.compiler.set_stance("force_eager"):
            results.append(parts_of(copy.run(), copy.modules))
        assert copy.uncopied == {}
        assert copy.args[0] is not x

    assert repr(changeable()) == before
    assert x.grad is None
    assert compared(*results).agreement is Agreement.EQUAL
    if name == "a function":
        assert {"output", "model.0.weight.grad", "model.1.running_mean"} <= results[0].keys()


def test_code_is_ones_own_and_what_was_compiled_is_measured_by_what_it_was_compiled_from() -> None:
    copy = copied(Call("f(x)", "f", torch.compile(train, backend="eager")))
    assert copy.function.__code__ == train.__code__ and copy.function.__code__ is not train.__code__
    assert copy.function.__globals__["predict"].__globals__ is copy.function.__globals__
    assert (
        copy.function.__globals__["optimizer"].param_groups[0]["params"][0] is copy.modules["model"][0].weight
    )

    assert original(torch.compile(model, backend="eager")) is model
    assert original(torch.compile(train, backend="eager")) is train
    disabled = torch.compiler.disable(train)
    assert original(disabled) is disabled
    one, other = (copied(Call("f(x)", "f", nn.functional.softmax)).function for _ in range(2))
    assert one.__code__ is not other.__code__ and one.__code__.co_name == "softmax"
    within = nn.Sequential(nn.Identity(), torch.compile(model, backend="eager"))
    assert type(copied(Call("f(x)", "f", within)).modules["f"][1]) is nn.Sequential


@pytest.mark.parametrize("name", ["sin", "norm", "add_"])
def test_the_method_of_a_tensor_is_traced_with_the_tensor_as_an_argument(name: str) -> None:
    x = torch.ones(3)
    arguments = (1,) if name == "add_" else ()
    call = of_tensor(Call(f"x.{name}()", f"x.{name}", getattr(x, name), arguments))
    assert call.args == (x, *arguments) and call.function.__code__.co_qualname == name

    copy = copied(call)
    compiled = torch.compile(copy.function, backend="eager", fullgraph=True)
    assert torch.equal(compiled(*copy.args), getattr(torch.ones(3), name)(*arguments))
    assert x.tolist() == [1, 1, 1]
    other = Call("f()", "f", predict)
    assert of_tensor(other) is other


def test_what_cannot_be_copied_is_named_and_shared() -> None:
    def reads(x: torch.Tensor) -> torch.Tensor:
        return x + next(batches)

    within = torch.ones(2, requires_grad=True) * 2
    copy = copied(Call("f(x, y)", "f", reads, (within, (each for each in "ab"))))

    assert copy.uncopied == {"batches": "generator", "argument 1": "generator"}
    assert copy.args[0] is not within and copy.args[0].requires_grad  # though deepcopy takes no such tensor


Pair = namedtuple("Pair", "first second")


@dataclass
class Answer:
    logits: torch.Tensor
    rest: Any = None


def test_results_are_compared_wherever_they_are() -> None:
    one, two = torch.ones(3, 4), torch.ones(3, 4)
    two[1, 2] += 0.5

    def places(eager: Any, compiled: Any) -> Comparison:
        return compared(parts_of(eager, {}), parts_of(compiled, {}))

    for wrap, place in (
        (lambda each: each, "output[1, 2]"),
        (lambda each: {"a": [0, each]}, "output['a'][1][1, 2]"),
        (lambda each: Pair(1, each), "output.second[1, 2]"),
        (lambda each: Answer(each), "output.logits[1, 2]"),
    ):
        found = places(wrap(one), wrap(two))
        assert found.absolute is not None and found.absolute.place == place
        assert (found.absolute.eager, found.absolute.compiled, found.absolute.difference) == (1.0, 1.5, 0.5)
        assert found.agreement is Agreement.DIFFERENT


def test_the_measure_is_what_torch_testing_allows() -> None:
    def compare(eager: Any, compiled: Any) -> Comparison:
        return compared(parts_of(eager, {}), parts_of(compiled, {}))

    nan, inf = float("nan"), float("inf")
    ones = torch.ones(4)
    for dtype, off in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2), (torch.float64, 1e-7)):
        near = torch.full((4,), 1 + off, dtype=dtype)
        assert compare(ones.to(dtype), near).agreement is Agreement.USUAL
        torch.testing.assert_close(near, ones.to(dtype))
    assert compare(ones, ones + 1e-4).agreement is Agreement.LARGER
    assert compare(1.0, 1.0 + 1e-6).agreement is Agreement.USUAL
    assert compare(torch.tensor([nan, inf]), torch.tensor([nan, inf])).agreement is Agreement.EQUAL
    assert compare(torch.tensor([nan, 1]), torch.tensor([0.0, 1])).agreement is Agreement.DIFFERENT
    assert compare(torch.tensor([inf, 1]), torch.tensor([9.0, 1])).agreement is Agreement.DIFFERENT
    assert compare(torch.arange(3), torch.arange(3) + 1).agreement is Agreement.DIFFERENT
    assert compare(ones > 0, ones < 0).agreement is Agreement.DIFFERENT
    tiny = compare(torch.tensor([1e-9, 1.0]), torch.tensor([2e-9, 1.0]))
    assert tiny.agreement is Agreement.USUAL and tiny.relative is None  # near zero
    for eager, compiled, said in (
        (ones, torch.ones(3), "output is float32[4] eager, float32[3] compiled"),
        (ones, ones.double(), "output is float32[4] eager, float64[4] compiled"),
        ({"a": 1}, {"b": 1}, "output['a'] is there eager only"),
        (1, ones, "output is int eager, float32[4] compiled"),
    ):
        assert compare(eager, compiled).mismatch == said


def test_random_streams_the_gradient_mode_and_the_profile_are_put_back() -> None:
    import numpy
    from torch._dynamo import pgo

    def now() -> Iterator[object]:
        yield torch.get_rng_state().tolist()
        yield random.getstate()
        yield numpy.random.get_state()[1].tolist()  # type: ignore[index,union-attr]
        yield torch.is_grad_enabled()
        yield id(pgo._CODE_STATE), id(pgo._INIT_CODE_STATE)

    before, drawn = [*now()], []
    with contextlib.suppress(KeyboardInterrupt), kept():
        for _ in range(2):
            seeded(0)
            drawn.append((torch.rand(1).item(), random.random(), numpy.random.rand()))
        torch.set_grad_enabled(False)
        raise KeyboardInterrupt
    assert [*now()] == before
    assert drawn[0] == drawn[1]
