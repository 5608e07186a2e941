"""A store on whatever fsspec opens: a folder that several people share, `s3://`, `gs://`, `hf://`, `memory://`.

Layout, below the URL or path that is given::

    v1/<key>     the value
    v1/.tmp/     on a folder only: files being written; renamed to where they belong when whole

A put is atomic on a folder, and where the service takes an object whole, as object stores do. Elsewhere
(`ftp://`) a reader may see the beginning of a value; entries are verified when they are read, so that costs a
miss.

In a folder only regular files are values, reached by no link: others can put anything there. Nor is anything
written or removed through a link. A chain of services (`simplecache::file://`) would do so, and is refused.
One `get_many` reads no more bytes than one value may have. The rest is absent, as is a longer value.

fsspec has no timeouts of its own: each service has its defaults, and a network folder may hang for as long as
its server does. Whoever must not wait asks from a thread.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from nbcache.core.errors import ConfigError, StoreError, StoreUnavailable
from nbcache.core.text import redacted
from nbcache.core.threads import ForkSafeLock, renew_in_children
from nbcache.stores.base import MAX_VALUE_BYTES, check_key, check_length, check_prefix, is_key
from nbcache.stores.plain_files import (
    LinkInTheWay,
    files_below,
    folder_of,
    is_absence,
    is_plain,
    read_plain,
    remove_abandoned,
    store_error,
)

_T = TypeVar("_T")

PLACES = (
    "give a path, or a URL: redis://, rediss://, redis+cluster://, rediss+cluster://, redis+sentinel://, "
    "rediss+sentinel://, file://, s3://, gs://, hf://, memory://, or what else fsspec opens"
)
"""The forms of a store's URL."""
_VERSION = "v1"
_TEMPORARY = ".tmp"
_AT_ONCE = 16
"""Objects that a service is asked for at once."""

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class FilesystemStore:
    """Values in files or objects that others may read and write too, below `url`, which may be a path.

    Raises ConfigError where fsspec cannot open such URLs, or what it needs for that is not installed. A key
    that is also a folder of other keys (`a` beside `a/b`) cannot be put in a folder: StoreError.

    In a folder, who may read and write a value is who may read and write the folder itself.
    """

    read_only = False  # only a write finds that out

    def __init__(self, url: str | os.PathLike[str]):
        text = os.fspath(url)
        # Absolute, since a cell may change the working directory.
        self._url = text if "://" in text else str(Path(text).absolute())
        self.name = redacted(self._url)
        _check(self._url)
        self._open: tuple[Any, str] | None = None
        self._looked_for_abandoned = False
        self._lock = ForkSafeLock()
        renew_in_children(self)

    def renew(self) -> None:
        """Go on in a forked child: most of fsspec's services have a thread, which is not there."""
        self._open = None

    def get(self, key: str) -> bytes | None:
        return self.get_many([key]).get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        """Return those of `keys` that are there, with their bytes; several at once, where fsspec does so."""
        wanted = [check_key(key) for key in dict.fromkeys(keys)]
        with self._errors("cannot be read"):
            fs, root = self._connect()
            if _is_folder(fs):
                return _read_files(Path(root), wanted)
            return self._read_objects(fs, root, wanted)

    def _read_objects(self, fs: Any, root: str, keys: list[str]) -> dict[str, bytes]:
        """Return the objects whose lengths, asked for first, sum up to one value's; no byte more is read."""
        left = MAX_VALUE_BYTES
        lengths: dict[str, int] = {}
        for key, length in self._each(fs, partial(_length, fs, root), keys).items():
            if length is not None and length <= left:
                lengths[key] = length
                left -= length
        found = {key: b"" for key, length in lengths.items() if not length}  # some have no part of it
        parts = [(key, length) for key, length in lengths.items() if length]
        paths, ends = [f"{root}/{key}" for key, _ in parts], [length + 1 for _, length in parts]
        answers = fs.cat_ranges(paths, [0] * len(paths), ends, on_error="return") if paths else []
        for (key, length), answer in zip(parts, answers, strict=True):
            if isinstance(answer, Exception) and not is_absence(answer):
                raise answer
            if isinstance(answer, bytes) and len(answer) <= length:
                found[key] = answer
        return found

    def _each(self, fs: Any, ask: Callable[[str], _T], keys: list[str]) -> dict[str, _T]:
        """Return what a service answers for each of `keys`; several at once, where fsspec can."""
        fs.invalidate_cache()  # of listings: others write here too
        if not fs.async_impl or len(keys) < 2:  # some cannot be asked by several threads
            return {key: ask(key) for key in keys}
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return dict(zip(keys, pool.map(ask, keys), strict=True))

    def present(self, keys: Iterable[str]) -> set[str]:
        """Return those of `keys` that are there; several at once, where fsspec can."""
        wanted = {check_key(key) for key in keys}
        with self._errors("cannot be read"):
            fs, root = self._connect()
            if _is_folder(fs):
                return {key for key in wanted if is_plain(*_below(Path(root), key))}
            lengths = self._each(fs, partial(_length, fs, root), list(wanted))
            return {key for key, length in lengths.items() if length is not None}

    def put(self, key: str, value: bytes) -> None:
        """Store `value` under `key`, whole or not at all where the service can do that."""
        check_key(key)
        check_length(value, self.name)
        with self._errors("cannot be written to", writing=True):
            fs, root = self._connect()
            if _is_folder(fs):
                self._put_file(Path(root), key, value)
            else:
                fs.pipe_file(f"{root}/{key}", bytes(value))

    def delete(self, key: str) -> None:
        check_key(key)
        with self._errors("cannot be written to", writing=True):
            fs, root = self._connect()
            try:
                if _is_folder(fs):
                    with folder_of(*_below(Path(root), key)) as (folder, name):
                        os.unlink(name, dir_fd=folder)
                else:
                    fs.rm_file(f"{root}/{key}")
            except Exception as error:
                if not is_absence(error):
                    raise

    def keys(self, prefix: str = "") -> Iterator[str]:
        """Yield the keys that begin with `prefix`; some that come or go meanwhile may be missed."""
        return self._list(check_prefix(prefix))

    def close(self) -> None:
        """Do nothing: fsspec shares its connections with others in this process, and closes them itself."""

    def _list(self, prefix: str) -> Iterator[str]:
        with self._errors("cannot be listed"):
            fs, root = self._connect()
            if _is_folder(fs):
                folder, below = _below(Path(root), prefix)
                paths = [f"{folder}/{name}" for name in files_below(folder, below)]
            else:
                fs.invalidate_cache()  # of listings: others write here too
                try:
                    paths = fs.find(f"{root}/{prefix}".rstrip("/"))
                except FileNotFoundError:
                    paths = []
        for path in paths:  # some services begin paths with a slash
            key = path.lstrip("/").removeprefix(f"{root.lstrip('/')}/")
            if key.startswith(prefix) and is_key(key):
                yield key

    def _connect(self) -> tuple[Any, str]:
        """Return fsspec's filesystem and the path in it that keys are below."""
        import fsspec

        with self._lock:
            if self._open is None:
                fs, path = fsspec.url_to_fs(self._url)
                self._open = fs, f"{path.rstrip('/')}/{_VERSION}"
            return self._open

    def _put_file(self, root: Path, key: str, value: bytes) -> None:
        shared = root.parent
        shared.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(shared.stat().st_mode)  # those may use it who may use the shared one
        unique = f"{os.getpid()}-{secrets.token_hex(8)}"
        with (
            folder_of(*_below(root, f"{_TEMPORARY}/{unique}"), mode=mode) as (folder, temporary),
            folder_of(*_below(root, key), mode=mode) as (target, name),
        ):
            if not self._looked_for_abandoned:
                self._looked_for_abandoned = True
                remove_abandoned(folder)
            try:
                descriptor = os.open(temporary, _NEW_FILE, 0o600, dir_fd=folder)
                with os.fdopen(descriptor, "wb") as stream:
                    os.fchmod(descriptor, mode & 0o666)
                    stream.write(value)
                os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=target)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise

    @contextlib.contextmanager
    def _errors(self, what: str, *, writing: bool = False) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except Exception as error:  # each service has its own
            if writing and isinstance(error, LinkInTheWay):
                raise StoreUnavailable(
                    "a folder in this store is a link, which somebody else may have put there",
                    where=str(error.filename),
                    next_step="remove it, or name another folder",
                ) from error
            raise store_error(error, what, "this store", self.name, writing=writing) from error


def _check(url: str) -> None:
    """Raise ConfigError where fsspec cannot open a URL, or it names a chain of services."""
    import fsspec
    from fsspec.registry import known_implementations

    if "::" in url:
        raise ConfigError(
            "a store is not used through another service: that follows links, which others may put there",
            where=redacted(url),
            next_step="name the service or the folder itself",
        )
    protocol = url.partition("://")[0] if "://" in url else "file"
    try:
        fsspec.get_filesystem_class(protocol)
    except ValueError as error:
        what = f"no store is known by the scheme {protocol[:40]!r}"
        raise ConfigError(what, next_step=PLACES) from error  # nobody knows where its secrets are
    except ImportError as error:
        known = known_implementations.get(protocol, {})
        package = known.get("class", "").partition(".")[0]
        raise ConfigError(
            f"stores on {protocol}:// need a package that is not installed",
            where=redacted(url),
            next_step=str(known.get("err")) if package == "fsspec" else f"pip install {package}",
        ) from error


def _is_folder(fs: Any) -> bool:
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(fs, LocalFileSystem)


def _length(fs: Any, root: str, key: str) -> int | None:
    """Return how long an object is; None for a missing object, or an unknown length."""
    try:
        info = fs.info(f"{root}/{key}")
    except Exception as error:
        if is_absence(error):
            return None
        raise
    length = info.get("size") if info["type"] == "file" else None
    return length if isinstance(length, int) and length >= 0 else None


def _below(root: Path, key: str) -> tuple[Path, str]:
    """Return the folder that was named, which may be a link, and a key's path in it, which may be none."""
    return root.parent, f"{root.name}/{key}"


def _read_files(root: Path, keys: Iterable[str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    left = MAX_VALUE_BYTES
    for key in keys:
        content = read_plain(*_below(root, key), max_bytes=left)
        if content is not None:
            found[key] = content
            left -= len(content)
    return found
