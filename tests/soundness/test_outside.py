"""Programs whose cells stay the same while something outside of them changes: no trace answers wrongly.

Each program reads data from a file or a variable of the environment. The first data record its trace, and the
same data must adopt it. With all data, the answer must be eager's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from soundness.restarts import Restarts
from soundness.subjects import SET_UP
from soundness.test_edits import difference

from support.front_door import environ_below
from support.torch_versions import needs_traces

pytestmark = [pytest.mark.compile, pytest.mark.proof, needs_traces]

READS = {
    "a file": "import json; DATA = json.load(open({path!r}))\n",
    "a variable": "import json, os; DATA = json.loads(os.environ['OUTSIDE_DATA'])\n",
}
PROGRAMS: dict[str, tuple[str, list[Any]]] = {
    "a number in a nested dictionary": (
        "def f(x): return x * DATA['a'][1]['k']\n",
        [{"a": [0, {"k": 2.0}]}, {"a": [0, {"k": 3.0}]}, {"a": [0, {"k": 2}]}],
    ),
    "a function that the data choose": (
        "g = {'sin': torch.sin, 'cos': torch.cos, 'own': lambda x: x * 3}[DATA]\ndef f(x): return g(x) + 1\n",
        ["sin", "cos", "own"],
    ),
    "a class that a factory makes": (
        """\
        def make(scale, base):
            class Made(base):
                gain = scale
                def run(self, x): return x * self.gain + len(type(self).__mro__)
            return Made
        class Base: pass
        net = make(DATA[0], (object, Base)[DATA[1]])()
        def f(x): return net.run(x)
        """,
        [[2.0, 0], [3.0, 0], [2.0, 1]],
    ),
    "a closure's cell": (
        """\
        def make(k):
            def inner(x): return x * k
            return inner
        g = make(DATA)
        def f(x): return g(x)
        """,
        [2.0, 3.0, 2],
    ),
    "a default and an attribute of a function": (
        """\
        def g(x, k=DATA[0]): return x * k + g.more
        g.more = DATA[1]
        def f(x): return g(x)
        """,
        [[2.0, 1], [3.0, 1], [2.0, 2]],
    ),
    "a monkeypatch in one case": (
        """\
        net = torch.nn.Linear(4, 4)
        if DATA: torch.nn.Linear.forward = lambda self, x: x * 2
        def f(x): return net(x)
        """,
        [False, True],
    ),
    "a method of an instance": (
        """\
        class Net(torch.nn.Module):
            def forward(self, x): return self.act(x)
            def act(self, x): return x.relu()
        net = Net()
        if DATA: net.act = lambda x: x.tanh()
        def f(x): return net(x)
        """,
        [False, True],
    ),
    "a built-in name that a global hides": (
        "if DATA: abs = lambda x: 7\ndef f(x): return x * abs(-3)\n",
        [False, True],
    ),
    "an attribute that a module lacks": (
        """\
        part = types.ModuleType("nbcache_test_outside")
        sys.modules["nbcache_test_outside"] = part
        if DATA: part.K = 5.0
        def f(x): return x * part.K if hasattr(part, "K") else x
        """,
        [False, True],
    ),
    "two names of one list": (
        """\
        a = [1.0, 2.0]
        b = a if DATA else [1.0, 2.0]
        def f(x): return x * (2 if a is b else 3)
        """,
        [True, False],
    ),
    "an order of keys": (
        """\
        table = dict.fromkeys(DATA, 2.0)
        def f(x):
            for key in table: x = x + 1 if key == "a" else x * table[key]
            return x
        """,
        [["a", "b"], ["b", "a"]],
    ),
    "a list that a cell has appended to": (
        """\
        steps = [1.0]
        for number in range(DATA): steps.append(number + 2.0)
        def f(x):
            for step in steps: x = x * step
            return x
        """,
        [1, 2],
    ),
    "a dataclass that Python compares": (
        """\
        import dataclasses
        @dataclasses.dataclass(frozen=True)
        class Inner: k: float
        @dataclasses.dataclass(frozen=True)
        class Key: inner: Inner
        table = {Key(Inner(DATA)): 2.0, Key(Inner(9.0)): 3.0}
        one = Key(Inner(1.0))
        def f(x): return x * table.get(one, 5.0)
        """,
        [1.0, 2.0],
    ),
    "a dataclass as an argument of `==`": (
        """\
        import dataclasses
        @dataclasses.dataclass
        class Inner: k: float
        @dataclasses.dataclass
        class Config: inner: Inner; sizes: list
        config, other = Config(Inner(1.0), [1]), Config(Inner(DATA), [1])
        def f(x): return x * (2 if config == other else 3)
        """,
        [1.0, 2.0],
    ),
    "a global that `__format__` reads": (
        """\
        class Scale:
            def __format__(self, spec): return str(DATA)
        scale = Scale()
        def f(x): return x * len(f"{scale}")
        """,
        [1, 100],
    ),
    "a global that `__instancecheck__` reads": (
        """\
        class Meta(type):
            def __instancecheck__(cls, value): return DATA
        class Kind(metaclass=Meta): pass
        thing = object()
        def f(x): return x * (2 if isinstance(thing, Kind) else 3)
        """,
        [False, True],
    ),
    "a hook of an abstract class, whose answer is known already": (
        """\
        import abc
        class Kind(abc.ABC):
            @classmethod
            def __subclasshook__(cls, other): return bool(DATA)
        class Thing: pass
        thing = Thing()
        isinstance(thing, Kind)
        def f(x): return x * (2 if isinstance(thing, Kind) else 3)
        """,
        [0, 1],
    ),
    "a class that is registered in one case": (
        """\
        import abc
        class Kind(abc.ABC): pass
        class Thing: pass
        if DATA: Kind.register(Thing)
        thing = Thing()
        def f(x): return x * (2 if isinstance(thing, Kind) else 3)
        """,
        [False, True],
    ),
    "a property that no code in Python computes": (
        """\
        import operator
        class Inner: pass
        class Net:
            k = property(operator.attrgetter("inner.k"))
        net = Net(); net.inner = Inner(); net.inner.k = DATA
        def f(x): return x * net.k
        """,
        [2.0, 3.0],
    ),
    "code of a text": (
        "exec(DATA)\ndef f(x): return g(x)\n",
        ["def g(x): return x + 1", "def g(x): return x - 1", "g = torch.sin"],
    ),
    "a docstring that is set": (
        """\
        def g(x): return x * len(g.__doc__)
        g.__doc__ = DATA
        def f(x): return g(x)
        """,
        ["one", "three"],
    ),
    "an annotation that is made": (
        """\
        import inspect
        def g(x, k: DATA = 2.0): return x * k
        def f(x): return g(x) * len(inspect.signature(g).parameters["k"].annotation)
        """,
        ["a", "abc"],
    ),
    "a context variable": (
        """\
        import contextvars
        scale = contextvars.ContextVar("scale", default=2.0)
        if DATA: scale.set(DATA)
        def f(x): return x * scale.get()
        """,
        [0, 3.0],
    ),
    "an enumeration": (
        """\
        import enum
        class Mode(enum.Enum): ONE = DATA[0]; TWO = 2.0
        mode = Mode(DATA[1])
        def f(x): return x * mode.value * len(Mode)
        """,
        [[1.0, 1.0], [1.5, 1.5], [1.0, 2.0], [2.0, 2.0]],
    ),
    "torch's global state": (
        """\
        torch.set_default_dtype(getattr(torch, DATA))
        def f(x): return x + torch.ones(4)
        """,
        ["float32", "float64"],
    ),
    "sizes of a tensor": (
        "Y = torch.ones(*DATA)\ndef f(x): return x + Y * Y.shape[-1]\n",
        [[4], [1], [4, 4]],
    ),
    "a generator's state, which draws a number": (
        """\
        import random
        random.seed(DATA)
        k = random.random()
        def f(x): return x * k
        """,
        [1, 2],
    ),
}
UNTRACED = {
    *(
        "a global that `__format__` reads",
        "a global that `__instancecheck__` reads",
        "a docstring that is set",
    ),
    *("a hook of an abstract class, whose answer is known already", "two names of one list"),
    *("a property that no code in Python computes", "a dataclass that Python compares"),
}
"""Programs that may have no trace: no fact covers what they read."""


WRONG_IN_TORCH = {"a global that `__instancecheck__` reads"}
"""Programs that torch alone answers wrongly."""


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Restarts, Restarts]]:
    """Return two machines with the same modules, each with its own order for sets of texts."""
    kernels = [Restarts(environ_below(tmp_path_factory.mktemp("alike")), hash_seed=seed) for seed in (1, 2)]
    yield kernels[0], kernels[1]
    for restarts in kernels:
        restarts.close()


def outcome(restarts: Restarts, program: str, data: Any, how: str, path: Path, **more: Any) -> dict[str, Any]:
    """Run a program on data, and return what came out of it."""
    text = json.dumps(data)
    if how == "a file":
        path.write_text(text)
    trace = "off" if how == "without traces" else "on"
    settings = {"NBCACHE_TRACE": trace, "NBCACHE_AUDIT": "0", "OUTSIDE_DATA": text}
    return restarts.having(**settings).run(program, **more)


@pytest.mark.parametrize("name", [*PROGRAMS])
def test_what_changes_outside_of_the_cells_gets_no_answer_of_before(
    name: str, alike: tuple[Restarts, Restarts], tmp_path: Path
) -> None:
    body, texts = PROGRAMS[name]
    first, second = alike
    how, path = ("a file", "a variable")[len(name) % 2], tmp_path / "data.json"
    folder = tmp_path / "kernels"
    program = f"{SET_UP}{READS[how].format(path=str(path))}{dedent(body)}results = infer(f, X)\n"
    expected = outcome(first, program, texts[0], how, path, folder=folder)
    assert "error" not in expected, expected
    for data in texts:
        found = outcome(second, program, data, how, path, folder=folder)
        if name in WRONG_IN_TORCH:
            right = outcome(second, program, data, "without traces", path, folder=tmp_path / f"{data}")
        else:
            right = outcome(second, program, data, how, path, folder=tmp_path / "eager", eager=True)
        assert "error" not in found, found
        assert "please report" not in str(found["notices"])
        assert not difference(found, right), data
        if data is texts[0] and name not in UNTRACED:
            assert all(reason.startswith("not traced: ") for *_, reason in found["graphs"]), found["graphs"]
