"""The C++ compiler that torch calls, and who it is."""

from __future__ import annotations

import os
import shlex
import shutil

from nbcache.torch_bridge.torch_behavior import TORCHBEHAVIOR

__all__ = ["compiler", "compiler_identity"]


def compiler() -> tuple[str, list[str] | None]:
    """Return the C++ compiler, as `CXX` names it, and the command that runs it; None where it is not there.

    All of `CXX` names a program where torch takes no arguments there, as it does in `ccache g++`.
    """
    name = os.environ.get("CXX", "g++")
    words = [name]
    if TORCHBEHAVIOR.arguments_in_cxx:
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
