"""Parts of the standard library whose results depend on their arguments alone.

Other parts read files, clocks or process settings, which no cache key covers. A part that is not listed here
is treated as one of those.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

__all__ = ["STATEFUL_ATTRIBUTES", "is_pure"]


def _words(*texts: str) -> frozenset[str]:
    return frozenset(word for text in texts for word in text.split())


_PURE_MODULES = _words(
    "abc array base64 binascii bisect builtins cmath codecs collections contextlib copy copyreg dataclasses",
    "datetime enum fractions functools graphlib hashlib heapq html itertools json keyword math numbers",
    "opcode operator pprint random re reprlib sre statistics string struct textwrap types typing warnings",
    "weakref zlib",
)
"""Modules of pure functions; a leading underscore of a C module is left out."""
_PURE_NAMES: Mapping[str, frozenset[str]] = {
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
"""Pure functions and classes of other modules, and locks."""
STATEFUL_ATTRIBUTES: Mapping[str, frozenset[str]] = {
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
"""Function or class → attributes that read outside state. Without them, the function or class is pure."""


def is_pure(module: str, name: str) -> bool:
    """Return whether `name` of a module depends on its arguments alone; True outside the standard library."""
    package = module.partition(".")[0]
    if package not in sys.stdlib_module_names:
        return True
    package = package.lstrip("_")
    if package == "posixpath":
        package = "ntpath"
    return package in _PURE_MODULES or name.partition(".")[0] in _PURE_NAMES.get(package, frozenset())
