"""Values of a trace's sources are read, and no code of the user runs for that."""

from __future__ import annotations

import collections
import cProfile
import functools
import gc
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from nbcache.torch_bridge.traces.facts import ABSENT, RUNS, Expression, NoTrace, SourceValues

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


class Fields(metaclass=Meta):
    __slots__ = ("__dict__", "slot")
    plain = 1
    prop = property(ran)
    cached = functools.cached_property(ran)
    descriptor = Descriptor()
    data = DataDescriptor()
    partial = property(functools.partial(ran, 1))
    of_class = classmethod(property(ran))  # type: ignore[arg-type]


class WithGetattr(SimpleNamespace):
    __getattr__ = ran


class WithGetattribute:
    __getattribute__ = ran


class Key(str):
    __slots__ = ()
    __eq__ = __hash__ = ran  # type: ignore[assignment]


fields = Fields()
fields.own = 1  # type: ignore[attr-defined]
vars(fields).update(cached=1, descriptor=1)


def read(value: Any, text: str, key: Any = None) -> Any:
    code = compile(text, "<source>", "eval")
    RUN.clear()  # pytest looks at the values, too
    value = SourceValues({}, {}, {"key": key}).read(Expression(code, key is not None, key), value)
    assert not RUN and sys.getprofile() is None
    return value


@pytest.mark.parametrize(
    ("value", "name", "expected"),
    [
        (fields, "plain", 1),
        (fields, "own", 1),
        (fields, "slot", ABSENT),
        (fields, "absent", ABSENT),
        (fields, "prop", RUNS),
        (fields, "partial", RUNS),
        (fields, "data", RUNS),
        (fields, "of_class", RUNS),
        (fields, "cached", 1),  # the instance has it
        (fields, "descriptor", 1),
        (Fields(), "cached", RUNS),
        (Fields(), "descriptor", RUNS),
        (Fields, "prop", vars(Fields)["prop"]),
        (Fields, "descriptor", RUNS),
        (Fields, "of_meta", RUNS),
        (Fields, "absent", RUNS),
        (WithGetattr(a=1), "a", 1),
        (WithGetattr(a=1), "b", RUNS),
        (WithGetattribute(), "a", RUNS),
        (collections, "OrderedDict", collections.OrderedDict),
    ],
)
def test_an_attribute_is_read_unless_code_would_run(value: Any, name: str, expected: Any) -> None:
    assert read(value, f"_.{name}") is expected


def test_an_element_is_read_unless_code_would_run() -> None:
    class Elements(list[int]):
        __getitem__ = ran

    assert read([1], "_[0]", 0) == 1
    assert read(Elements([1]), "_[0]", 0) is RUNS
    assert read({"a": 1}, "dict.__getitem__(_, key)", Key("a")) is RUNS


def test_a_dictionary_makes_no_element() -> None:
    makes = collections.defaultdict(list, a=1)

    assert read(makes, "_['a']", "a") == 1
    assert read(makes, "_['b']", "b") is RUNS
    assert read({}, "_['b']", "b") is ABSENT
    assert [*makes] == ["a"]


def test_a_package_hides_no_code_of_the_user_by_catching_errors() -> None:
    source = "def catch(value):\n    try:\n        value.prop\n    except BaseException:\n        return 5\n"
    scope: dict[str, Any] = {}
    exec(compile(source, "/usr/lib/python3/site-packages/catch.py", "exec"), scope)
    wrapper = type("Wrapper", (), {"prop": property(lambda self: ran()), "safe": property(scope["catch"])})

    assert read(wrapper(), "_.safe") is RUNS


def test_a_finalizer_of_the_user_still_runs() -> None:
    class Finalized:
        __del__ = ran

    values, expression = SourceValues({}, {}, {}), Expression(compile("[[1], [2]]", "<source>", "eval"))
    threshold = gc.get_threshold()
    cycle: list[Any] = [Finalized()]
    cycle.append(cycle)
    RUN.clear()
    gc.set_threshold(1)
    del cycle
    try:
        value = values.read(expression, None)
    finally:
        gc.set_threshold(*threshold)
    assert value == [[1], [2]] and gc.isenabled()
    gc.collect()
    assert RUN == ["ran"]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="3.12 has several tools at once")
def test_nothing_is_read_while_a_profiler_runs() -> None:
    with cProfile.Profile(), pytest.raises(NoTrace, match="a profiler runs"):
        SourceValues({}, {}, {})
