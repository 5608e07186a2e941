"""What nbcache logs: off the screen until it is asked for, and without secrets for any handler."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from nbcache.core import log

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


@pytest.mark.parametrize(
    "url",
    [
        f"redis://ada:{SECRET}@cache:6379/0",
        f"redis://:a/b@{SECRET}@cache:6379/0",
        f"rediss://cache:6379/0?password={SECRET}&db=1",
        f"s3://bucket/x?secret={SECRET}#team/gpt",
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

    assert said.count("Traceback") == said.count("\nValueError: ") == 2
    assert SECRET not in said


def test_what_is_logged_with_a_percent_sign_is_said_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    log.logger.debug("%s of %d", "100 % (x@y.z)", 3)

    assert caplog.messages == ["100 % (x@y.z) of 3"]
