"""Values of sources: found without running code of the user's."""

from __future__ import annotations

import collections
import cProfile
import functools
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from nbcache.torch_bridge.traces.facts import ABSENT, RUNS, Expression, Untold, Values

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


class Asks(SimpleNamespace):
    __getattr__ = ran


class AsksAlways:
    __getattribute__ = ran


class Elements(list[int]):
    __getitem__ = ran


held = Held()
held.there = 1  # type: ignore[attr-defined]
vars(held).update(cached=1, descriptor=1)


def read(value: Any, text: str, key: Any = None) -> Any:
    RUN.clear()  # pytest, too, looks at the values
    code = compile(text, "<source>", "eval")
    return Values({}, {}, {"ran": ran}).read(Expression(code, has_key=key is not None, key=key), value)


@pytest.mark.parametrize(
    ("value", "name", "expected"),
    [
        (held, "plain", 1),
        (held, "there", 1),
        (held, "slot", ABSENT),
        (held, "absent", ABSENT),
        (held, "prop", RUNS),
        (held, "partial", RUNS),
        (held, "data", RUNS),
        (held, "of_class", RUNS),
        (held, "cached", 1),  # the instance holds it
        (held, "descriptor", 1),
        (Held(), "cached", RUNS),
        (Held(), "descriptor", RUNS),
        (Held, "prop", vars(Held)["prop"]),
        (Held, "descriptor", RUNS),
        (Held, "of_meta", RUNS),
        (Held, "absent", RUNS),
        (Asks(a=1), "a", 1),
        (Asks(a=1), "b", RUNS),
        (AsksAlways(), "a", RUNS),
        (collections, "OrderedDict", collections.OrderedDict),
    ],
)
def test_an_attribute_is_read_unless_code_would_run(value: Any, name: str, expected: Any) -> None:
    before = sys.getprofile()
    assert read(value, f"_.{name}") is expected
    assert not RUN and sys.getprofile() is before


def test_an_element_is_read_unless_code_would_run() -> None:
    assert read([1], "_[0]", 0) == 1
    assert read(Elements([1]), "_[0]", 0) is RUNS
    assert not RUN


def test_a_dictionary_makes_no_element() -> None:
    made = collections.defaultdict(list, a=1)

    assert read(made, "_['a']", "a") == 1
    assert read(made, "_['b']", "b") is RUNS
    assert read({}, "_['b']", "b") is ABSENT
    assert [*made] == ["a"]


def test_what_hides_that_code_would_run_is_found_out() -> None:
    source = "def hides(value):\n    try:\n        value.prop\n    except BaseException:\n        return 5\n"
    scope: dict[str, Any] = {}
    exec(compile(source, "/usr/lib/python3/site-packages/hides.py", "exec"), scope)
    wrapped = type("Wrapped", (), {"prop": property(lambda self: ran()), "hidden": property(scope["hides"])})

    assert read(wrapped(), "_.hidden") is RUNS
    assert not RUN


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="3.12 has several tools at once")
def test_nothing_is_read_while_somebody_profiles() -> None:
    with cProfile.Profile(), pytest.raises(Untold, match="a profiler runs"):
        Values({}, {}, {})
