"""Forked kernels that are restarted before they are ready, and while the one before them still runs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from support.front_door import Kernel
from support.nurseries import Start, launcher_of, nursery_of, process_of
from support.redis_servers import wait_until

pytestmark = [pytest.mark.compile, pytest.mark.xdist_group("files of packages")]


def waits_for_a_lock(launcher: psutil.Process) -> bool:
    return any(file.path.endswith("/kernels") for file in launcher.open_files())


def test_a_restarted_kernel_waits_for_the_end_of_the_one_before_it(start: Start) -> None:
    kernel = start()
    assert nursery_of(kernel)
    watcher = process_of(kernel).parent()
    assert watcher is not None
    watcher.suspend()  # as on a busy machine: the kernel keeps its ports though its launcher was killed
    try:
        kernel.manager.restart_kernel(now=True)
        launcher = launcher_of(kernel)
        wait_until(lambda: waits_for_a_lock(launcher), "the next launcher waits for the first kernel's end")
    finally:
        watcher.resume()
    kernel.client.wait_for_ready(timeout=60)
    assert nursery_of(kernel)


@contextmanager
def busy(count: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def ready_client(manager: KernelManager) -> BlockingKernelClient:
    client = manager.blocking_client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    return client


@pytest.mark.parametrize(
    ("count", "processes"), [(5, 0), pytest.param(200, psutil.cpu_count() or 1, marks=pytest.mark.proof)]
)
def test_a_kernel_answers_after_restarts_at_any_moment_of_its_start(
    start: Start, count: int, processes: int
) -> None:
    manager = start().manager
    with busy(processes):
        for number in range(count):
            time.sleep(number % 30 / 10 if processes else number / 20)  # the moment: 0 to 3 s after the start
            manager.restart_kernel(now=number % 4 < 2)
            if number % 2:  # else it is restarted again, before it has answered
                client = ready_client(manager)
                assert nursery_of(Kernel(manager, client))
                client.stop_channels()
        client = ready_client(manager)
        assert nursery_of(Kernel(manager, client))
        client.stop_channels()
