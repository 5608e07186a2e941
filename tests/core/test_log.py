"""What nbcache logs: off the screen until it is asked for, and without secrets for any handler."""

from __future__ import annotations

import io
import logging
import sys
import textwrap
import threading
from collections.abc import Iterator

import pytest

from nbcache.core import log
from support.front_door import RunPython

SECRET = "hunter2"


@pytest.fixture
def shows() -> Iterator[None]:
    yield
    log.show("off")


def fail(url: str) -> None:
    raise ValueError(f"{url} does not answer")


def test_nothing_is_on_the_screen_until_it_is_asked_for(
    capsys: pytest.CaptureFixture[str], shows: None
) -> None:
    for level in ("off", "debug", "debug", "off"):
        log.show(level)
        log.logger.debug("looked up")
        log.logger.warning("a fault")
        said = capsys.readouterr()
        assert said.out == ""
        lines = [line.split(" ", 2)[2] for line in said.err.splitlines()]
        assert lines == (["looked up", "a fault"] if level == "debug" else []), level


def test_handlers_run_after_a_deferral_and_on_other_threads_at_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log.defer()
    log.logger.info("%s of %d", "100 % (x@y.z)", 3)
    other = threading.Thread(target=log.logger.info, args=("there",))
    other.start()
    other.join()
    assert caplog.messages == ["there"]
    log.deliver()
    assert caplog.messages == ["there", "100 % (x@y.z) of 3"]


@pytest.mark.parametrize(
    "url",
    [
        f"redis://ada:{SECRET}@cache:6379/0",
        f"redis://:a/b@{SECRET}@cache:6379/0",
        f"rediss://cache:6379/0?password={SECRET}&db=1",
        f"s3://bucket/x?secret={SECRET}#team/gpt",
        f"redis://[::1]?password={SECRET}",
        f"redis://cache/0-?password=it'{SECRET}",
        f"redis://cache/0?password=a@{SECRET}",
        f"redis://:a?{SECRET}@cache/0",
    ],
)
def test_no_handler_is_given_a_secret(
    url: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, shows: None
) -> None:
    caplog.set_level(logging.DEBUG)
    for level in ("off", "debug"):  # a handler of the user's own, and ours
        log.show(level)
        try:
            fail(url)
        except ValueError as error:
            log.logger.info("asking %s failed", url, exc_info=error)
    said = caplog.text + capsys.readouterr().err

    seen = [(record.getMessage(), record.exc_info) for record in caplog.records]
    assert SECRET not in repr(seen)
    assert said.count("Traceback") == said.count("\nValueError: ") == 2
    assert SECRET not in said


def test_a_logger_that_somebody_has_asked_for_before_tells_no_secrets_either(run_python: RunPython) -> None:
    code = f"""
    import logging
    logging.basicConfig(level=logging.DEBUG)
    logging.getLogger("nbcache").setLevel(logging.DEBUG)
    from nbcache.core.log import logger
    logger.info("asking %s", "redis://:{SECRET}@cache:6379/0")
    """
    said = run_python(textwrap.dedent(code)).stderr

    assert "asking redis://cache:6379/0" in said and SECRET not in said


def test_no_handler_fails_who_logs(monkeypatch: pytest.MonkeyPatch, shows: None) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("no room")

    class Unsayable:
        def __str__(self) -> str:
            raise ValueError

    broken = Broken()
    log.logger.addHandler(broken)
    try:
        log.logger.warning("a fault")
    finally:
        log.logger.removeHandler(broken)
    log.show("debug")
    log.logger.debug("%s", Unsayable())
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    log.logger.debug("looked up")


def test_a_level_that_the_user_has_set_is_as_before(shows: None) -> None:
    log.logger.setLevel(logging.DEBUG)
    try:
        for level in ("off", "debug", "debug", "off", "off"):
            log.show(level)
        assert (log.logger.level, log.logger.propagate) == (logging.DEBUG, True)
    finally:
        log.logger.setLevel(logging.NOTSET)
