"""Digests of objects: the same for what holds the same, and another one wherever a reader could tell."""

from __future__ import annotations

import functools
import subprocess
import sys
import textwrap
import types
from abc import ABCMeta, abstractmethod
from collections import OrderedDict, defaultdict, deque
from typing import Any

import pytest

from nbcache.keys.fingerprints.code import code_digest
from nbcache.keys.fingerprints.objects import Objects, Unknown


def digest(value: Any) -> str:
    return Objects().digest(value)


def made(source: str, name: str = "made") -> Any:
    """Return what `source` defines as `name`, in a module of its own."""
    scope: dict[str, Any] = {"__name__": "test_objects_made", "functools": functools}
    exec(textwrap.dedent(source), scope)
    return scope[name]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        ("1", b"1"),
        ((1, 2), [1, 2]),
        ([1, 2], [2, 1]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, OrderedDict(a=1)),
        (defaultdict(int), defaultdict(list)),
        (deque([1], 3), deque([1], 4)),
        ({1}, frozenset({1})),
        (range(3), range(0, 3, 2)),
        (slice(1), slice(2)),
        (len, max),
        (int, bool),
        (types.SimpleNamespace(a=1), types.SimpleNamespace(a=2)),
        (functools.partial(max, 1), functools.partial(max, 2)),
        ([[1]], [[2]]),
    ],
)
def test_values_that_differ_have_other_digests(one: Any, other: Any) -> None:
    assert digest(one) != digest(other)
    assert digest(one) == digest(one)


FUNCTION = """
    def outer(c, g):
        def made(x, k=2, *, n=3):
            return g(x) * c + k + n
        made.attribute = 1
        return made
    made = outer(5, lambda x: x + 1)
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("k=2", "k=4"),
        ("n=3", "n=4"),
        ("outer(5", "outer(6"),
        ("x + 1", "x + 2"),
        ("* c", "/ c"),
        ("attribute = 1", "attribute = 2"),
        ("attribute", "another"),
        ("def made(x", "def made(y, x"),
    ],
)
def test_a_function_counts_by_all_that_is_its_own(old: str, new: str) -> None:
    assert digest(made(FUNCTION)) != digest(made(FUNCTION.replace(old, new)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return g", "# a comment\n\n            return g"),
        ("def made(x,", "def made(x: int,"),
        ("outer(5,", "\n    outer(5,"),
    ],
)
def test_comments_annotations_and_lines_do_not_count(old: str, new: str) -> None:
    source = FUNCTION.replace("made = outer(5,", "made = (outer(5,").replace("+ 1)", "+ 1))")
    assert digest(made(source)) == digest(made(source.replace(old, new)))


def test_a_docstring_counts_only_where_code_reads_it_as_a_constant() -> None:
    one, other = (made(f'def made():\n    """{text}"""\n    return 1') for text in ("one", "another"))
    assert code_digest(one.__code__) == code_digest(other.__code__)
    read, changed = (made(f'def made():\n    "{text}"\n    return "{text}"') for text in ("one", "another"))
    assert code_digest(read.__code__) != code_digest(changed.__code__)


CLASS = """
    class Base:
        shared = 1
        def run(self): return 1
    class made(Base):
        held = [1, 2]
        @property
        def size(self): return 2
        @staticmethod
        def st(): return 3
        @classmethod
        def cm(cls): return 4
        @functools.lru_cache
        def cached(self): return 5
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("shared = 1", "shared = 2"),
        ("def run(self): return 1", "def run(self): return 7"),
        ("[1, 2]", "[1, 3]"),
        ("return 2", "return 7"),
        ("return 3", "return 7"),
        ("return 4", "return 7"),
        ("return 5", "return 7"),
        ("class made(Base)", "class made"),
        ("@staticmethod", "@classmethod"),
    ],
)
def test_a_class_counts_with_all_its_attributes_and_bases(old: str, new: str) -> None:
    assert digest(made(CLASS)) != digest(made(CLASS.replace(old, new)))
    assert digest(made(CLASS)()) != digest(made(CLASS.replace(old, new))())


def test_of_an_object_that_an_instance_holds_its_class_counts_alone() -> None:
    class Held:
        def __init__(self, value: int) -> None:
            self.value = value

    class Holder:
        def __init__(self, value: int, number: int = 0) -> None:
            self.held = Held(value)
            self.many = [Held(value), {"a": Held(value)}]
            self.number = number

    objects = Objects()
    one = Holder(1)
    assert objects.digest(one) == digest(Holder(2)) != digest(Holder(1, number=1))
    assert objects.covers(one) and not objects.covers(one.held)
    assert objects.digest(one.held) != digest(Holder(2).held)
    assert objects.covers(one.held)


def test_what_cannot_be_told_is_not_covered() -> None:
    objects = Objects()
    with open(__file__) as file:
        for value in (file, iter([]), types.ModuleType("nobody"), memoryview(b"")):
            assert objects.digest(value)
            assert not objects.covers(value)


def test_objects_that_hold_each_other_have_digests() -> None:
    def ring(number: int) -> list[Any]:
        one: list[Any] = [number]
        one.append([one])
        return one

    assert digest(ring(1)) == digest(ring(1)) != digest(ring(2))


def test_nothing_of_an_objects_own_runs() -> None:
    class Hostile:
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

        __eq__ = __hash__ = __repr__ = __bool__ = __len__ = None  # type: ignore[assignment]

    assert digest(Hostile()) == digest(Hostile())


def test_a_nan_is_unknown_and_its_sign_counts_in_code() -> None:
    for value in (float("nan"), [1.0, float("nan")], complex(float("nan"), 1.0)):
        with pytest.raises(Unknown, match="NaN"):
            digest(value)
    made_of = (lambda: 0.5).__code__
    codes = [made_of.replace(co_consts=(None, value)) for value in (float("nan"), -float("nan"))]
    assert code_digest(codes[0]) != code_digest(codes[1])


def test_a_number_counts_however_many_digits_it_has() -> None:
    class Number(int):
        pass

    many = 10**5000
    for made in (int, Number, lambda each: {each}, lambda each: {(1, each): 1}):
        assert digest(made(many)) == digest(made(10**5000)) != digest(made(many + 1))  # type: ignore[operator]


@pytest.mark.parametrize("name", ["k", "z"])
def test_a_protocol_counts_by_what_it_has_annotations_of_alone(name: str) -> None:
    source = """
        from typing import Protocol
        class made(Protocol):
            k: float
    """
    assert (digest(made(source)) == digest(made(source.replace("k:", f"{name}:")))) is (name == "k")


def test_too_much_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbcache.keys.fingerprints.objects._MOST_OBJECTS", 100)
    with pytest.raises(Unknown, match="more objects"):
        Objects().digest([[number] for number in range(101)])


def test_sets_have_no_order_and_say_so() -> None:
    objects = Objects()
    several, numbers = {"one", "two"}, {1, 2}
    objects.digest([several, numbers])
    assert objects.unordered == {id(several)}


def test_digests_are_the_same_in_processes_with_other_hashes() -> None:
    code = """
        import sys
        from nbcache.keys.fingerprints.objects import Objects
        import argparse, collections, dataclasses, email.message, logging, pathlib, typing
        kinds = [argparse.ArgumentParser, collections.ChainMap, email.message.Message, pathlib.Path]
        print(Objects().digest([*kinds, {"one", "two", "three"}, frozenset({"a", "b"}), typing.NamedTuple]))
    """
    found = {_run(code, seed) for seed in ("1", "2", "3")}
    assert len(found) == 1


def _run(code: str, seed: str) -> str:
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True)
    return done.stdout


def test_a_rule_comes_before_everything_else() -> None:
    class WithRule(Objects):
        def rule(self, value: Any) -> str | None:
            return {complex: "a number", bytearray: ""}.get(type(value))

    objects = WithRule()
    held = bytearray(b"1")
    assert objects.digest(held).startswith("opaque ") and not objects.covers(held)


def test_which_of_the_classes_that_were_met_are_registered_for_which_counts_by_itself() -> None:
    class Shape(metaclass=ABCMeta):
        @abstractmethod
        def area(self) -> float: ...

    class Round(Shape):
        pass

    class Met:
        pass

    class Unmet:
        pass

    def told() -> tuple[str, str]:
        objects = Objects()
        digests = " ".join(map(objects.digest, (Shape, Met)))
        return digests, objects.registrations

    first = told()
    Shape.register(Unmet)
    assert told() == first
    Round.register(Met)
    digests, registrations = told()
    assert digests == first[0] and registrations != first[1]
