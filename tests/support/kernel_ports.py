"""Ports for kernels that nobody else takes between being found free and being bound.

jupyter_client asks the system for free ports and gives them up again before the kernel binds them. Until then
another test's kernel, server or connection may be given the same ones, and the kernel dies.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_client.connect import LocalPortCache

_HOST = "127.0.0.1"
_PORTS_OF_A_KERNEL = 5
_SLICE = 250
"""How many ports a process of tests has to itself: more than its kernels hold at one time."""


@contextlib.contextmanager
def slice_of_its_own() -> Iterator[None]:
    """Have kernels that this process starts take ports that no other process of tests takes.

    They are below those that the system gives away; where it gives away all, nothing is changed.
    """
    with contextlib.ExitStack() as held:
        first = _claimed(held)
        if first is not None:
            ports = itertools.cycle(range(first + 1, first + _SLICE))

            def find(_: LocalPortCache, ip: str) -> int:
                return next(port for port in itertools.islice(ports, _SLICE) if _is_free(ip, port))

            patched = held.enter_context(pytest.MonkeyPatch.context())
            patched.setattr(LocalPortCache, "find_available_port", find)
        yield


@contextlib.contextmanager
def taken() -> Iterator[list[int]]:
    """Have the next kernel that this process starts be given ports that are taken.

    Yields the ports given since, those included.
    """
    given: list[int] = []
    find = LocalPortCache.find_available_port
    with contextlib.ExitStack() as held:
        ports = []
        for _ in range(_PORTS_OF_A_KERNEL):
            other = held.enter_context(socket.socket())
            other.bind((_HOST, 0))
            ports.append(other.getsockname()[1])

        def give(cache: LocalPortCache, ip: str) -> int:
            given.append(ports[len(given)] if len(given) < len(ports) else find(cache, ip))
            return given[-1]

        patched = held.enter_context(pytest.MonkeyPatch.context())
        patched.setattr(LocalPortCache, "find_available_port", give)
        yield given


def _claimed(held: contextlib.ExitStack) -> int | None:
    """Bind the first port of a slice that nobody has, until `held` is closed; None where there is none."""
    for first in range(10_000, _first_given_away() - _SLICE, _SLICE):
        holder = socket.socket()
        try:
            holder.bind((_HOST, first))
        except OSError:  # another process of tests has this slice
            holder.close()
        else:
            held.enter_context(holder)
            return first
    return None


def _first_given_away() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:  # not Linux
        return 32_768


def _is_free(ip: str, port: int) -> bool:
    with socket.socket() as tried:
        try:
            tried.bind((ip, port))
        except OSError:
            return False
        return True
