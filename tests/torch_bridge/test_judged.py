"""Which code that Python ran while Dynamo traced may have read what no fact tells."""

from __future__ import annotations

import argparse
import codecs
import collections
import inspect
import types
import typing
from dataclasses import dataclass
from typing import Any

import nbformat.sign
import pytest

from nbcache.core.key import Component
from nbcache.torch_bridge.traces.judged import Judged

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
    code = code_of(function)
    judged = Judged([code])
    assert (judged.refused, judged.of_packages) == ({code}, {})


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
    judged = Judged([code_of(function)])
    assert (judged.refused, judged.of_packages) == (set(), {})


def test_code_of_packages_is_told_with_its_module() -> None:
    code = code_of(nbformat.sign.yield_code_cells)
    assert Judged([code]).of_packages == {code: "nbformat.sign"}
