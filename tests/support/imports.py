"""Import beforehand what programs import, in a process that others are forked from."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress


def import_what(run: Callable[[], object], *, but: str = "") -> None:
    """Import what `run` imports in a forked child, but for one package."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.dup2(2, 1)
            run()
            with open(writable, "w") as names:
                names.write("\n".join(sys.modules))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writable)
    with open(readable) as names:
        imported = names.read().splitlines()
    assert os.waitpid(child, 0)[1] == 0
    for name in imported:
        if name.partition(".")[0] != but:
            with suppress(ImportError):
                importlib.import_module(name)
