"""Settings: typed, and each value knows its origin."""

from __future__ import annotations

from pathlib import Path

import pytest

from nbcache.core.errors import ConfigError
from nbcache.core.settings import Settings, torch_redis_url


def test_the_environment_sets_values_and_is_named_as_their_origin(tmp_path: Path) -> None:
    settings = Settings.from_env(
        {"NBCACHE_DIR": str(tmp_path), "NBCACHE_MAX_BYTES": "500MB", "NBCACHE_LIVE": "off"}
    )

    assert (settings.dir, settings.max_bytes, settings.live) == (tmp_path, 500_000_000, False)
    assert settings.origin("max_bytes") == "environment, NBCACHE_MAX_BYTES"
    assert settings.origin("save") == "default"
    assert Settings.from_env({"NBCACHE_DIR": " "}) == Settings.from_env({})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max_bytes", "1048576", 1048576),
        ("max_bytes", "1MB", 1_000_000),
        ("max_bytes", "1.5 GB", 1_500_000_000),
        ("max_bytes", "2GiB", 2_000_000_000),
        ("save", "no", False),
        ("save", "ON", True),
        ("report", "magic", "magic"),
    ],
)
def test_values_are_read_as_people_write_them(name: str, text: str, value: object) -> None:
    assert getattr(Settings().with_value(name, text, origin="test"), name) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("max_bytes", "lots"), ("max_bytes", "0"), ("save", "perhaps"), ("report", "loud"), ("dir", "")),
        *(("shared_timeout", text) for text in ("", "never", "0", "-1", "601", "nan", "inf")),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_with_its_place(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match="cannot be used") as caught:
        Settings().with_value(name, text, origin="%nbcache config")

    assert caught.value.where == "%nbcache config"


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(ConfigError) as caught:
        Settings().with_value("max_byte", "1", origin="test")

    assert caught.value.next_step == "did you mean 'max_bytes'?"


def test_the_shared_url_reaches_other_processes_and_no_output() -> None:
    url = "redis://ada:hunter2@host:6380/1?prefix=hunter2"
    given = {
        "NBCACHE_SHARED_URL": url,
        "NBCACHE_SHARED_TIMEOUT": "0.5s",
        "NBCACHE_SHARED_CONNECT_TIMEOUT": "1",
    }
    settings = Settings.from_env(given)

    assert (settings.shared_url, settings.shared_timeout, settings.shared_connect_timeout) == (url, 0.5, 1.0)
    assert Settings.from_env(settings.to_env()) == settings
    assert settings.text("shared_url") == "redis://host:6380/1"
    assert "hunter2" not in repr(settings)


@pytest.mark.parametrize(
    ("variables", "url", "origin"),
    [
        ({}, "redis://localhost:6379", "FX_GRAPH_REMOTE_CACHE"),
        ({"REDIS_PORT": "6380"}, "redis://localhost:6380", "REDIS_PORT"),
        ({"REDIS_HOST": "host"}, "redis://host:6379", "REDIS_HOST"),
        ({"REDIS_HOST": "::1", "REDIS_PORT": "1"}, "redis://[::1]:1", "REDIS_HOST"),
        ({"REDIS_HOST": "host", "REDIS_URL": "redis://:s@other/2?x=1"}, "redis://:s@other/2", "REDIS_URL"),
    ],
)
def test_torchs_variables_name_its_redis(variables: dict[str, str], url: str, origin: str) -> None:
    given = {f"TORCHINDUCTOR_{name}": value for name, value in variables.items()}

    assert torch_redis_url(given)[0] == url
    assert Settings.from_env(given).shared_url == ""
    settings = Settings.from_env({**given, "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "1"})
    assert settings.shared_url == url
    assert settings.origin("shared_url") == f"environment, TORCHINDUCTOR_{origin}"
    own = Settings.from_env(
        {**given, "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "1", "NBCACHE_SHARED_URL": "/team"}
    )
    assert own.shared_url == "/team"
