"""The code that Python runs while Dynamo traces: code that may read the user's objects is refused."""

from __future__ import annotations

import argparse
import codecs
import collections
import cProfile
import gc
import inspect
import itertools
import sys
import threading
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import nbformat.sign
import pytest

from nbcache.core.key import Component
from nbcache.kernel.program import Program
from nbcache.traces.facts import NoTrace
from nbcache.traces.state_reads import ExecutedCode, check_executed_code

Two = collections.namedtuple("Two", "a b")


@dataclass(frozen=True, order=True)
class Pair:
    a: int


def method() -> int:
    return 1


def code_of(function: Any) -> types.CodeType:
    return inspect.unwrap(function).__code__  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "function",
    [
        *(method, Pair.__eq__, Pair.__hash__, Pair.__repr__, Pair.__lt__),
        *(codecs.StreamReader.__getattr__, argparse.Namespace.__contains__, collections.UserDict.__getitem__),
        eval("lambda: 1"),
    ],
)
def test_what_looks_into_the_users_objects_is_refused(function: Any) -> None:
    with pytest.raises(NoTrace, match=f"Python runs .*{code_of(function).co_name}"):
        [*check_executed_code([code_of(function)], [])]


@pytest.mark.parametrize(
    "function",
    [
        *(Pair.__init__, Component.__eq__, Component.__lt__, typing.ForwardRef.__eq__),
        *(collections.Counter.__missing__, collections.UserDict.__init__, codecs.getreader),
        Two.__new__,
        Two.__getnewargs__,
    ],
)
def test_what_makes_things_and_what_torch_itself_has_run_is_not(function: Any) -> None:
    assert [*check_executed_code([code_of(function)], [])] == []


def test_code_of_packages_is_refused_but_for_what_imports_ask() -> None:
    with pytest.raises(NoTrace, match=r"Python runs yield_code_cells\(\) of nbformat.sign"):
        [*check_executed_code([code_of(nbformat.sign.yield_code_cells)], [])]


def before() -> None: ...
def within() -> list[int]:
    return [*numbers()]


def numbers() -> Iterator[int]:
    yield (lambda: 1)()


def apart() -> None: ...
def again() -> None: ...


def test_code_that_runs_on_this_thread_is_noted_once_whenever_it_may_be() -> None:
    executed = ExecutedCode()
    before()
    for _ in range(2):
        executed.begin()
        within()
        other = threading.Thread(target=apart)
        other.start()
        other.join()
        executed.end()
        before()
    another = ExecutedCode()
    another.begin()
    again()
    within()
    another.end()

    names = [code.co_name for code in executed.codes() if code.co_filename == __file__]
    assert sorted(names) == ["<lambda>", "numbers", "within"]
    names = [code.co_name for code in another.codes() if code.co_filename == __file__]
    assert sorted(names) == ["<lambda>", "again", "numbers", "within"]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="3.12 has several tools at once")
def test_it_is_not_possible_while_somebody_profiles() -> None:
    with cProfile.Profile():
        assert not ExecutedCode.is_possible()
    assert ExecutedCode.is_possible()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="3.11 has one profiler")
def test_it_is_possible_while_a_number_is_free() -> None:
    monitoring = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    with cProfile.Profile():
        assert ExecutedCode.is_possible()
    for number in (3, 4):
        monitoring.use_tool_id(number, "another")
    assert not ExecutedCode.is_possible()
    for number in (3, 4):
        monitoring.free_tool_id(number)
    assert ExecutedCode.is_possible()


@pytest.mark.parametrize("look", [Program().digest, lambda: [*check_executed_code([], [])]])
def test_modules_may_be_imported_meanwhile(look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    imported = (f"imported_{number}" for number in itertools.count())

    def collect(phase: str, info: dict[str, int]) -> None:  # as another thread, which runs at such a point
        monkeypatch.setitem(sys.modules, next(imported), types.ModuleType("imported"))

    threshold = gc.get_threshold()
    gc.callbacks.append(collect)
    gc.set_threshold(1)
    try:
        look()
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(collect)
    assert next(imported) != "imported_0"
