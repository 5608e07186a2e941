"""What is noted of the code that Python runs."""

from __future__ import annotations

import cProfile
import sys
import threading
from collections.abc import Iterator

import pytest

from nbcache.torch_bridge.traces.packages import holds, verdict_of
from nbcache.torch_bridge.traces.ran import Ran
from nbcache.torch_bridge.traces.values import Untold


def before() -> None: ...
def within() -> list[int]:
    return [*numbers()]


def numbers() -> Iterator[int]:
    yield (lambda: 1)()


def apart() -> None: ...
def again() -> None: ...


def test_code_that_runs_on_this_thread_is_noted_once_whenever_it_may_be() -> None:
    ran = Ran()
    before()
    for _ in range(2):
        ran.begin()
        within()
        other = threading.Thread(target=apart)
        other.start()
        other.join()
        ran.end()
        before()
    another = Ran()
    another.begin()
    again()
    within()
    another.end()

    names = [code.co_name for code in ran.codes() if code.co_filename == __file__]
    assert sorted(names) == ["<lambda>", "numbers", "within"]
    names = [code.co_name for code in another.codes() if code.co_filename == __file__]
    assert sorted(names) == ["<lambda>", "again", "numbers", "within"]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="3.12 has several tools at once")
def test_it_is_not_possible_while_somebody_profiles() -> None:
    with cProfile.Profile():
        assert not Ran.is_possible()
    assert Ran.is_possible()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="3.11 has one profiler")
def test_it_is_possible_while_a_number_is_free() -> None:
    monitoring = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    with cProfile.Profile():
        assert Ran.is_possible()
    for number in (3, 4):
        monitoring.use_tool_id(number, "another")
    assert not Ran.is_possible()
    for number in (3, 4):
        monitoring.free_tool_id(number)
    assert Ran.is_possible()


def test_a_verdict_holds_as_long_as_the_function_that_python_ran_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nested() -> None: ...

    own = sys.modules[__name__]
    verdict = verdict_of(Untold("Python runs within()", code=within.__code__))
    of_nested = verdict_of(Untold("Python runs nested()", code=nested.__code__))
    assert holds(verdict) and holds(of_nested)
    monkeypatch.setattr(own, "within", lambda: [1])
    assert not holds(verdict)
    monkeypatch.delattr(own, "within")
    assert not holds(verdict)
    assert holds(verdict_of(Untold("its sizes vary")))
    assert not holds(b"a reason without a cause, as versions before stored it")
