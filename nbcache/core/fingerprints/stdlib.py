"""Which parts of the standard library do nothing but compute, from what they are given.

Others read files, clocks, settings of the process and the like, which no value tells. What is not named here
is taken for one of them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

__all__ = ["TOGETHER", "computes"]


def _words(*texts: str) -> frozenset[str]:
    return frozenset(word for text in texts for word in text.split())


_MODULES = _words(
    "abc array base64 binascii bisect builtins cmath codecs collections contextlib copy copyreg dataclasses",
    "datetime enum fractions functools graphlib hashlib heapq html itertools json keyword math numbers",
    "opcode operator pprint random re reprlib sre statistics string struct textwrap types typing warnings",
    "weakref zlib",
)
"""Modules that compute, without the underscore of those that are written in C."""
_NAMES: Mapping[str, frozenset[str]] = {
    "argparse": _words("Namespace"),
    "inspect": _words("isbuiltin isclass iscoroutinefunction isfunction isgeneratorfunction ismethod"),
    "io": _words("BytesIO StringIO TextIOBase"),
    "ntpath": _words("basename commonprefix dirname isabs join normpath split splitext"),
    "os": _words("PathLike fspath"),
    "pathlib": _words("PurePath PurePosixPath PureWindowsPath"),
    "posix": _words("fspath"),
    "sys": _words("float_info hash_info int_info intern version_info"),
    "thread": _words("LockType RLock _local allocate_lock get_ident lock"),
    "threading": _words("Lock RLock _RLock get_ident local"),
}
"""Of other modules, what computes, or holds others off."""
TOGETHER: Mapping[str, frozenset[str]] = {
    "dataclasses.fields": _words("type"),
    "datetime.date": _words("today"),
    "datetime.datetime": _words("now today utcnow"),
    "logging.Logger": _words(
        "disabled filters getChild getEffectiveLevel handlers hasHandlers isEnabledFor level"
    ),
    "pathlib.Path": _words(
        "absolute cwd exists expanduser glob group home is_block_device is_char_device is_dir is_fifo",
        "is_file is_junction is_mount is_socket is_symlink iterdir lstat open owner readlink",
        "resolve rglob samefile stat walk",
    ),
}
"""What computes unless code reads one of these attributes of it."""


def computes(module: str, name: str) -> bool:
    """Tell whether what a module of the standard library calls `name` does nothing but compute.

    What is not of the standard library does, as far as it is known here.
    """
    package = module.partition(".")[0]
    if package not in sys.stdlib_module_names:
        return True
    package = package.lstrip("_")
    if package == "posixpath":
        package = "ntpath"
    return package in _MODULES or name.partition(".")[0] in _NAMES.get(package, frozenset())
