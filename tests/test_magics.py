"""`%nbcache` and loading, in a real shell of a fresh interpreter; nothing is compiled."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import RunPython

SHELL = """\
import json, sys, threading
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "nbcache")

def run(cell):
    with capture_output() as captured:
        result = shell.run_cell(cell, store_history=True)
    shown = "\\n".join(each.data.get("text/plain", "") for each in captured.outputs)
    return {"success": result.success, "text": captured.stdout + captured.stderr + shown}

def complete(text):
    from IPython.core.completer import provisionalcompleter
    with provisionalcompleter():
        return [each.text for each in shell.Completer.completions(text, len(text))]
"""


@pytest.fixture
def in_shell(run_python: RunPython) -> Any:
    """Return a function that evaluates an expression after `SHELL` and returns its value."""

    def in_shell(expression: str) -> Any:
        done = run_python(f"{SHELL}\nvalue = {expression}\nsys.__stdout__.write('@@' + json.dumps(value))")
        return json.loads(done.stdout.rpartition("@@")[2])

    return in_shell


def test_config_shows_each_setting_with_its_value_and_origin(in_shell: Any, isolated: dict[str, str]) -> None:
    shown = json.loads(in_shell('run("%nbcache config --json")["text"]'))

    rows = shown["settings"] + shown["torch"]
    by_name = {row["name"]: row for row in rows}
    assert by_name["dir"]["value"] == isolated["NBCACHE_DIR"]
    assert by_name["dir"]["origin"] == "environment, NBCACHE_DIR"
    assert (by_name["max_bytes"]["value"], by_name["max_bytes"]["origin"]) == ("5GB", "default")
    assert by_name["TORCHINDUCTOR_CACHE_DIR"]["origin"] == "not known before torch is imported"
    assert all(row["help"] for row in rows)


def test_a_setting_can_be_changed_and_says_by_what(in_shell: Any) -> None:
    text = in_shell('[run("%nbcache config max_bytes=500MB live=off"), run("%nbcache config")][1]["text"]')

    (line,) = [line for line in text.splitlines() if line.startswith("max_bytes")]
    assert "500MB" in line and "%nbcache config" in line


def test_what_is_not_understood_fails_with_one_clean_message(in_shell: Any) -> None:
    cases = [
        ("%nbcache stats", "did you mean `status`? Usage: %nbcache"),
        ("%nbcache status --jsn", "`--jsn` is not understood"),
        ("%nbcache doctor model.ipynb", "doctor: `model.ipynb` is not understood. Usage: %nbcache"),
        ("%nbcache config 'x", "no closing quotation"),
        ("%nbcache config max_byte=1", "did you mean 'max_bytes'?"),
        ("%nbcache config max_bytes=lots", "such as 500MB or 5GB"),
        ("%nbcache config dir=/elsewhere", "set NBCACHE_DIR"),
        ("%nbcache snapshot redis://:s3cret@host/0", "write URL#NAME, as in redis://host/0#team/gpt"),
        ("%nbcache restore redis://:s3cret@127.0.0.1:1/0#team/gpt", "Redis cannot be reached"),
        ("%nbcache clear everything", "takes nothing more"),
        ("%nbcache bench nanogtp", "did you mean nanogpt?"),
    ]
    everything = in_shell(f"[run(line) for line, _ in {cases!r}]")
    for (line, said), ran in zip(cases, everything, strict=True):
        assert not ran["success"], line
        assert said in ran["text"]
        assert "Traceback" not in ran["text"]
        assert "s3cret" not in ran["text"]


def test_an_empty_session_has_a_status(in_shell: Any) -> None:
    status = json.loads(in_shell('[run("1 + 1"), run("%nbcache status --json")][1]["text"]'))

    assert [cell["graphs"] for cell in status["cells"]] == [[]]
    assert status["stores"][0]["name"] == "local store" and status["stores"][0]["entries"] == 0


def test_completion_offers_our_words_and_nothing_else(in_shell: Any) -> None:
    cases = {
        "%%compile_cached --mo": ["--mode"],
        "%nbcache st": ["status"],
        "%nbcache doc": ["doctor"],
        "%nbcache doctor --": ["--json"],
        "%nbcache config max": ["max_bytes="],
        "%nbcache config TORCHINDUCTOR_FO": ["TORCHINDUCTOR_FORCE_DISABLE_CACHES="],
    }
    more = ["%%compile_cached --", "%%compile_cached f\nprin"]
    *found, options, names = in_shell(f"[complete(line) for line in {[*cases, *more]!r}]")
    assert found == list(cases.values())
    assert set(options) >= {"--mode", "--quiet", "--require-hit"}
    assert all(word.startswith("--") for word in options)
    assert "print" in names


def test_help_shows_every_option(in_shell: Any) -> None:
    text = in_shell('shell.magics_manager.magics["cell"]["compile_cached"].__doc__')

    assert all(option in text for option in ("--mode", "--no-dynamic", "--require-hit", "Example"))


def test_reloading_leaves_one_of_everything(in_shell: Any) -> None:
    again = "run('%reload_ext nbcache')"
    threads = "sorted(t.name for t in threading.enumerate() if t.name.startswith('nbcache-live'))"

    assert in_shell(f"[{again}, {again}, run('%unload_ext nbcache'), {threads}][-1]") == []
    assert in_shell(f"[{again}, {again}, len(shell.events.callbacks['pre_run_cell'])][-1]") == 1


def test_without_the_extension_there_is_no_session(run_python: RunPython) -> None:
    done = run_python("import nbcache; nbcache.session()", check=False)

    assert done.returncode == 1
    assert "nbcache has no session here" in done.stderr


def test_silent_and_empty_cells_leave_the_reports_in_step(in_shell: Any) -> None:
    silent = "shell.run_cell('%%compile_cached\\n1', silent=True)"
    empty = "run('get_ipython().run_cell(\\'\\')')"
    count = (
        "[__import__('nbcache').session().report() is not None, len(__import__('nbcache').session().reports)]"
    )

    assert in_shell(f"[{silent}, {empty}, run('%%compile_cached\\n2'), run('3'), {count}][-1]") == [True, 3]
    assert (
        in_shell(f"[{silent}, run('%%compile_cached nosuch\\n2')['text'].count('does not exist')][-1]") == 1
    )


def test_loading_in_a_silent_execution_is_followed_by_reports(run_python: RunPython) -> None:
    code = SHELL.replace(
        'shell.run_line_magic("load_ext", "nbcache")', 'shell.run_cell("%load_ext nbcache", silent=True)'
    )
    done = run_python(f"{code}\nrun('1'); run('2')\nimport nbcache; print(len(nbcache.session().reports))")

    assert done.stdout.split()[-1] == "2"
