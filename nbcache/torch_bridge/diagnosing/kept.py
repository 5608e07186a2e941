"""Keeps the state of the process that calls change: random streams, modes, and what Dynamo has met."""

from __future__ import annotations

import contextlib
import random
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

__all__ = ["forget_sizes", "kept", "seeded"]


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Put back, at the end, random streams, torch's modes, and Dynamo's profile of dynamic shapes."""
    import torch
    from torch._dynamo import pgo

    python, cpu = random.getstate(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    numpy: Any = sys.modules.get("numpy")
    arrays = None if numpy is None else numpy.random.get_state()
    gradients, profile = torch.is_grad_enabled(), (pgo._CODE_STATE, pgo._INIT_CODE_STATE)
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    precision = torch.get_float32_matmul_precision()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
    forget_sizes()
    try:
        with warnings.catch_warnings():
            # A copied optimizer does not remember that a scheduler counts its steps.
            warnings.filterwarnings("ignore", module=r"torch\.optim\.lr_scheduler")
            warnings.filterwarnings("ignore", r".*(lr_scheduler\.step|optimizer\.step)\(\)")
            yield
    finally:
        pgo._CODE_STATE, pgo._INIT_CODE_STATE = profile
        torch.set_grad_enabled(gradients)
        torch.set_default_dtype(dtype)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if torch.get_float32_matmul_precision() != precision:
            torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(deterministic, warn_only=warns_only)
        random.setstate(python)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
        if arrays is not None:
            numpy.random.set_state(arrays)


def forget_sizes() -> None:
    """Have functions compile as in a kernel that has met no sizes yet; what is met is not stored."""
    from torch._dynamo import pgo

    # The very same object: torch stores a profile once it differs from the one that it began with.
    pgo._CODE_STATE = pgo._INIT_CODE_STATE = defaultdict(pgo.CodeState)


def seeded(seed: int) -> None:
    """Begin the random streams of torch, Python and NumPy anew."""
    import torch

    torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed a GPU later that is not used yet
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed)
