"""Prewarming where a notebook uses the GPU: it ends, and the kernel after it compiles nothing for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from test_gpu_cells import SAMPLES, TELL, cells

from support.front_door import LOAD, SESSION, Environ, Kernel
from support.gpu_machines import Machines

pytestmark = pytest.mark.gpu

USE = "import torch; x = torch.ones(8).cuda()"


def test_the_sample_is_compiled_once_and_restored_after_a_restart(
    machines: Machines, start_kernel: Callable[[Environ], Kernel], wipe: Callable[[Environ], None]
) -> None:
    machine = machines.make("machine", NBCACHE_PREWARM="on")

    for compiles in (True, False):
        kernel = start_kernel(machine.environ)
        kernel.run(LOAD)
        kernel.run(USE)
        kernel.idle()
        assert kernel.ask(f"{SESSION}.prewarm.state") == "done"
        slices = kernel.ask(f"[each['name'] for each in {SESSION}.prewarm.to_json()['slices']]")
        assert "CUDA context" in slices
        assert kernel.ask(f"{SESSION}.notices + [str(each) for each in {SESSION}.graphs]") == []
        assert machine.log.exists() == compiles
        kernel.end()
        wipe(machine.environ)
        machine.log.unlink(missing_ok=True)


def test_a_cell_after_prewarming_hits(
    machines: Machines, start_kernel: Callable[[Environ], Kernel], wipe: Callable[[Environ], None]
) -> None:
    machine = machines.make("machine", NBCACHE_PREWARM="on", NBCACHE_NOTEBOOK="model.ipynb")
    sample = SAMPLES["training"]
    machine.run(*cells(sample, TELL))
    wipe(machine.environ)
    machine.log.unlink()

    kernel = start_kernel(machine.environ)
    for cell in cells(sample):
        kernel.run(cell)
        kernel.idle()

    assert kernel.ask(f"[str(each.outcome) for each in {SESSION}.graphs]") == ["hit", "hit"]
    assert not machine.log.exists()
