"""Whether looking something up runs code of Python's is told without running any."""

from __future__ import annotations

import collections
import functools
from types import SimpleNamespace
from typing import Any

import pytest

from nbcache.keys.fingerprints.running import Running

RUN: list[str] = []


def ran(*args: Any) -> int:
    RUN.append("ran")
    return 1


class Descriptor:
    __get__ = ran


class DataDescriptor(Descriptor):
    __set__ = ran


class Meta(type):
    of_meta = property(ran)
    __getattr__ = ran


class Held(metaclass=Meta):
    __slots__ = ("__dict__", "slot")
    plain = 1
    prop = property(ran)
    cached = functools.cached_property(ran)
    descriptor = Descriptor()
    data = DataDescriptor()
    partial = property(functools.partial(ran, 1))
    of_class = classmethod(property(ran))  # type: ignore[arg-type]
    static = staticmethod(ran)

    def method(self) -> None: ...


class Asks(SimpleNamespace):
    __getattr__ = ran


class AsksAlways:
    __getattribute__ = ran


held = Held()
held.there = held.descriptor_there = 1  # type: ignore[attr-defined]
vars(held).update(cached=1, descriptor=1)


@pytest.mark.parametrize(
    ("value", "name", "runs"),
    [
        (held, "plain", False),
        (held, "there", False),
        (held, "slot", False),
        (held, "method", False),
        (held, "static", False),
        (held, "absent", False),
        (held, "prop", True),
        (held, "partial", True),
        (held, "data", True),
        (held, "of_class", True),
        (held, "cached", False),  # the instance holds it by now
        (held, "descriptor", False),
        (Held(), "cached", True),
        (Held(), "descriptor", True),
        (Held, "plain", False),
        (Held, "prop", False),
        (Held, "descriptor", True),
        (Held, "of_meta", True),
        (Held, "absent", True),
        (Held, "__mro__", False),
        (Asks(a=1), "a", False),
        (Asks(a=1), "b", True),
        (AsksAlways(), "a", True),
        ([], "append", False),
        (len, "__name__", False),
        (ran, "__code__", False),
        (collections, "OrderedDict", False),
    ],
)
def test_an_attribute_is_told_as_python_finds_it(value: Any, name: str, runs: bool) -> None:
    RUN.clear()
    running = Running(lambda code: code is ran.__code__)
    assert [running.attribute(value, name) for _ in range(2)] == [runs, runs]
    assert not RUN
    try:
        getattr(value, name)
    except AttributeError:
        pass
    assert bool(RUN) == runs


def test_an_element_is_told_by_its_class_and_others_code_does_not_count() -> None:
    class Own(list[int]):
        __getitem__ = ran

    class Generic:
        __class_getitem__ = ran

    theirs, nobody = Running(lambda code: code is ran.__code__), Running(lambda code: False)
    assert [theirs.element(each) for each in ([1], {"a": 1}, (1,), Own([1]))] == [False] * 3 + [True]
    assert not nobody.element(Own([1])) and not nobody.attribute(Held(), "prop")
    assert theirs.element(Generic) and not nobody.element(Generic) and not theirs.element(Held)


def test_a_function_in_c_counts_as_code_unless_it_only_reads() -> None:
    class Pops(list[int]):
        popped = property(list.pop)

    class Table(dict[str, int]):
        __getattr__ = dict.get

    class Emptied(dict[str, int]):
        __getattr__ = dict.pop

    running = Running(lambda code: False)
    pops = Pops([1])
    assert running.attribute(pops, "popped") and running.attribute(Emptied(a=1), "a")
    assert not running.attribute(Table(a=1), "a") and not running.element(pops)
    assert pops == [1]


def test_a_dictionary_that_makes_what_it_has_not_is_told_without_having_it_made() -> None:
    made = collections.defaultdict(lambda: ran(), a=1)
    assert [Running.missing(made, key) for key in ("a", "b")] == [False, True]
    assert not Running.missing({"a": 1}, "b") and not Running.missing([1], 5)
    assert list(made) == ["a"]
