"""The C++ compiler that torch calls, and who it is."""

from __future__ import annotations

import os
import shlex
import shutil

from nbcache.torch_bridge.environment import release, torch_version

__all__ = ["compiler", "compiler_identity"]


_ARGUMENTS_IN_CXX = (2, 15)
"""Since when torch takes `CXX` for a command."""


def compiler() -> tuple[str, list[str] | None]:
    """Return the C++ compiler, as `CXX` names it, and the command that runs it; None where it is not there.

    Since torch 2.15 arguments may stand there, as in `ccache g++`; before, all of it names a program.
    """
    name = os.environ.get("CXX", "g++")
    words = [name]
    if release(torch_version() or "0.0") >= _ARGUMENTS_IN_CXX:
        try:
            words = shlex.split(name) or [name]
        except ValueError:  # a quotation mark without its other
            return name, None
    path = shutil.which(words[0])
    return name, None if path is None else [path, *words[1:]]


def compiler_identity() -> str | None:
    """Return the identity of the C++ compiler without running it; None where there is none.

    Of a command that is all programs among its words (`ccache g++`), and their arguments.
    """
    _, command = compiler()
    return None if command is None else " ".join(map(_identity, command))


def _identity(word: str) -> str:
    """Return what tells the program that a word of a command names from others; another word as it is."""
    path = shutil.which(word)
    if path is None:
        return word
    path = os.path.realpath(path)
    status = os.stat(path)
    return f"{path} {status.st_size} {status.st_mtime_ns}"
