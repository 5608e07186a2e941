"""Forked children: the threads of their parent are not there, but the locks that those held still are."""

from __future__ import annotations

import functools
import os
import weakref
from typing import Protocol

__all__ = ["Renewed", "renew_in_children"]


class Renewed(Protocol):
    """What has locks, or waits for threads."""

    def renew(self) -> None:
        """Make new locks, and wait for none of the threads that were at work: no other thread is there."""


_renewed: weakref.WeakSet[Renewed] = weakref.WeakSet()


def renew_in_children(each: Renewed) -> None:
    """Have `each` renewed in every process that is forked from this one, for as long as it lives.

    People fork kernels with models in them (`multiprocessing`, data loaders), and a child that compiles would
    wait for ever for a lock that a thread of the parent happened to hold.
    """
    _renewed.add(each)
    _watch_forks()


@functools.cache
def _watch_forks() -> None:
    """Do so once a process: Python has no way to take such a hook back, and ours then has nothing to do."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_renew)


def _renew() -> None:
    for each in list(_renewed):
        each.renew()
