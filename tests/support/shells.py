"""A real IPython shell of a fresh interpreter, in which nbcache is loaded; nothing is compiled."""

from __future__ import annotations

import json
from typing import Any

from support.front_door import RunPython

SHELL = """\
import json, sys, threading
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "nbcache")

def run(cell):
    with capture_output() as captured:
        result = shell.run_cell(cell, store_history=True)
    shown = "\\n".join(output.data.get("text/plain", "") for output in captured.outputs)
    return {"success": result.success, "text": captured.stdout + captured.stderr + shown}

def texts(lines):
    return [run(line)["text"] for line in lines]

def looked():
    for thread in threading.enumerate():
        if thread.name in ("nbcache-look", "nbcache-tell"):
            thread.join(60)

def complete(text):
    from IPython.core.completer import provisionalcompleter
    with provisionalcompleter():
        return [completion.text for completion in shell.Completer.completions(text, len(text))]
"""


def value_in_shell(run_python: RunPython, code: str, *environ: dict[str, str], **more: Any) -> Any:
    """Run code after `SHELL`, and return what it leaves as `value`."""
    write = "sys.__stdout__.write('@@' + json.dumps(value))"
    done = run_python(f"{SHELL}\n{code}\n{write}", *environ, having="IPython", **more)
    assert "hunter2" not in done.stdout + done.stderr  # the password of every test
    return json.loads(done.stdout.rpartition("@@")[2])
