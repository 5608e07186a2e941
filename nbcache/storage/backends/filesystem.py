"""A store on fsspec: a folder that several people share, `s3://`, `gs://`, `hf://`, `memory://` and others.

Below the store's URL or path, `v1/<key>` is a value. In a folder, `v1/.tmp/` has temporary files, which are
renamed to their keys. So a put is atomic in a folder, and on services that store an object at once. Elsewhere
(`ftp://`) a reader may see a part of a value; readers verify each entry.

In a folder the store follows no link when it reads, writes or removes, and only regular files are values:
others can put anything there. A chain of services (`simplecache::file://`) would follow links, so it is
refused. One `get_many` returns at most as many bytes as one value may have, and omits other values.

fsspec has no timeouts: each service has its defaults, and a network folder hangs as long as its server does.
A caller that must not wait uses a thread.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from nbcache.core.errors import ConfigError, StoreError, StoreUnavailable
from nbcache.core.files import write_whole
from nbcache.core.text import redacted
from nbcache.core.threads import ForkSafeLock, renew_in_children
from nbcache.storage.backends.base import MAX_VALUE_BYTES, check_key, check_length, check_prefix, is_key
from nbcache.storage.backends.plain_files import (
    LinkInTheWay,
    clean_temporary,
    files_below,
    folder_of,
    is_absence,
    is_regular_file,
    read_regular_file,
    store_error,
)

PLACES = (
    "give a path, or a URL: redis://, rediss://, redis+cluster://, rediss+cluster://, redis+sentinel://, "
    "rediss+sentinel://, file://, s3://, gs://, hf://, memory://, or another scheme of fsspec"
)
_VERSION = "v1"
_TEMPORARY = ".tmp"
_AT_ONCE = 16


class FilesystemStore:
    """Values in shared files or objects below `url`, which may be a path.

    Raises ConfigError if fsspec cannot open such URLs. In a folder, values have the folder's permissions.
    """

    read_only = False  # only a write shows whether it is

    def __init__(self, url: str | os.PathLike[str]):
        text = os.fspath(url)
        # Absolute, since a cell may change the working directory.
        self._url = text if "://" in text else str(Path(text).absolute())
        self.name = redacted(self._url)
        _check_url(self._url)
        self._open: tuple[Any, str] | None = None
        self._cleaned_temporary = False
        self._lock = ForkSafeLock()
        renew_in_children(self)

    def renew(self) -> None:
        """Reconnect in a forked child: it lacks the threads of most fsspec services."""
        self._open = None

    def get(self, key: str) -> bytes | None:
        return self.get_many([key]).get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        wanted = [check_key(key) for key in dict.fromkeys(keys)]
        with self._errors("cannot be read"):
            fs, root = self._connect()
            if not _is_local(fs):
                return self._read_objects(fs, root, wanted)
            values: dict[str, bytes] = {}
            remaining = MAX_VALUE_BYTES
            for key in wanted:
                content = read_regular_file(*_below(root, key), max_bytes=remaining)
                if content is not None:
                    values[key] = content
                    remaining -= len(content)
            return values

    def _read_objects(self, fs: Any, root: str, keys: list[str]) -> dict[str, bytes]:
        """Look up the objects' lengths, and read as many as fit into `MAX_VALUE_BYTES` together."""
        remaining = MAX_VALUE_BYTES
        lengths: dict[str, int] = {}
        for key, length in self._stored_lengths(fs, root, keys).items():
            if length <= remaining:
                lengths[key] = length
                remaining -= length
        values = {key: b"" for key, length in lengths.items() if not length}  # empty ranges fail on some
        parts = [(key, length) for key, length in lengths.items() if length]
        paths, ends = [f"{root}/{key}" for key, _ in parts], [length + 1 for _, length in parts]
        answers = fs.cat_ranges(paths, [0] * len(paths), ends, on_error="return") if paths else []
        for (key, length), answer in zip(parts, answers, strict=True):
            if isinstance(answer, Exception) and not is_absence(answer):
                raise answer
            if isinstance(answer, bytes) and len(answer) <= length:
                values[key] = answer
        return values

    def _stored_lengths(self, fs: Any, root: str, keys: list[str]) -> dict[str, int]:
        """Return the lengths of stored objects; look several up at once if the service is asynchronous."""
        fs.invalidate_cache()  # cached listings miss the writes of others
        ask = partial(_length, fs, root)
        if fs.async_impl and len(keys) > 1:  # other services are not thread-safe
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                lengths = list(pool.map(ask, keys))
        else:
            lengths = list(map(ask, keys))
        pairs = zip(keys, lengths, strict=True)
        return {key: length for key, length in pairs if length is not None}

    def present(self, keys: Iterable[str]) -> set[str]:
        wanted = {check_key(key) for key in keys}
        with self._errors("cannot be read"):
            fs, root = self._connect()
            if _is_local(fs):
                return {key for key in wanted if is_regular_file(*_below(root, key))}
            return set(self._stored_lengths(fs, root, list(wanted)))

    def put(self, key: str, value: bytes) -> None:
        check_key(key)
        check_length(value, self.name)
        with self._errors("cannot be written to", writing=True):
            fs, root = self._connect()
            if _is_local(fs):
                self._put_file(root, key, value)
            else:
                fs.pipe_file(f"{root}/{key}", bytes(value))

    def delete(self, key: str) -> None:
        check_key(key)
        with self._errors("cannot be written to", writing=True):
            fs, root = self._connect()
            try:
                if _is_local(fs):
                    with folder_of(*_below(root, key)) as (folder, name):
                        os.unlink(name, dir_fd=folder)
                else:
                    fs.rm_file(f"{root}/{key}")
            except Exception as error:
                if not is_absence(error):
                    raise

    def keys(self, prefix: str = "") -> Iterator[str]:
        check_prefix(prefix)
        with self._errors("cannot be listed"):
            fs, root = self._connect()
            if _is_local(fs):
                folder, below = _below(root, prefix)
                paths = [f"{folder}/{name}" for name in files_below(folder, below)]
            else:
                fs.invalidate_cache()  # cached listings miss the writes of others
                try:
                    paths = fs.find(f"{root}/{prefix}".rstrip("/"))
                except FileNotFoundError:
                    paths = []
        # Some services return paths with a leading slash.
        keys = (path.lstrip("/").removeprefix(f"{root.lstrip('/')}/") for path in paths)
        return (key for key in keys if key.startswith(prefix) and is_key(key))

    def close(self) -> None:
        """Do nothing: fsspec shares its connections with other users in this process, and closes them."""

    def _connect(self) -> tuple[Any, str]:
        import fsspec

        with self._lock:
            if self._open is None:
                fs, path = fsspec.url_to_fs(self._url)
                self._open = fs, f"{path.rstrip('/')}/{_VERSION}"
            return self._open

    def _put_file(self, root: str, key: str, value: bytes) -> None:
        shared = Path(root).parent
        shared.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(shared.stat().st_mode)  # the same people may use it
        with (
            folder_of(*_below(root, f"{_TEMPORARY}/."), mode=mode) as (temporary, _),
            folder_of(*_below(root, key), mode=mode) as (folder, name),
        ):
            if not self._cleaned_temporary:
                self._cleaned_temporary = True
                clean_temporary(temporary)
            write_whole(Path(name), value, mode=mode & 0o666, folder=Path(), descriptors=(temporary, folder))

    @contextlib.contextmanager
    def _errors(self, failure: str, *, writing: bool = False) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except Exception as error:  # each service raises its own classes
            if writing and isinstance(error, LinkInTheWay):
                raise StoreUnavailable(
                    "a folder in this store is a link, which somebody else may have put there",
                    where=str(error.filename),
                    next_step="remove it, or name another folder",
                ) from error
            raise store_error(error, failure, "this store", self.name, writing=writing) from error


def _check_url(url: str) -> None:
    import fsspec
    from fsspec.registry import known_implementations

    if "::" in url:
        raise ConfigError(
            "chained URLs (`::`) are not supported: they may follow links that others put into the store",
            where=redacted(url),
            next_step="name the store or the folder itself",
        )
    protocol = url.partition("://")[0] if "://" in url else "file"
    try:
        fsspec.get_filesystem_class(protocol)
    except ValueError as error:
        problem = f"there is no store with the scheme {protocol[:40]!r}"
        raise ConfigError(problem, next_step=PLACES) from error  # without the URL: any part may be secret
    except ImportError as error:
        implementation = known_implementations.get(protocol, {})
        package = implementation.get("class", "").partition(".")[0]
        raise ConfigError(
            f"stores on {protocol}:// need a package that is not installed",
            where=redacted(url),
            next_step=str(implementation.get("err")) if package == "fsspec" else f"pip install {package}",
        ) from error


def _is_local(fs: Any) -> bool:
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(fs, LocalFileSystem)


def _length(fs: Any, root: str, key: str) -> int | None:
    """Return the length of a stored object; None if it is missing or no file."""
    try:
        info = fs.info(f"{root}/{key}")
    except Exception as error:
        if is_absence(error):
            return None
        raise
    length = info.get("size") if info["type"] == "file" else None
    return length if isinstance(length, int) and length >= 0 else None


def _below(root: str, key: str) -> tuple[Path, str]:
    """Return the store's folder, and the path from there on which `folder_of` follows no links."""
    folder = Path(root)
    return folder.parent, f"{folder.name}/{key}"
