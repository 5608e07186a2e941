"""Read local variables of torch functions on the stack; None if torch has renamed one."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, NamedTuple


class Local(NamedTuple):
    """A variable of a function in a torch module; an empty `function` means any."""

    module: str
    function: str
    name: str


_DYNAMO = "torch._dynamo.convert_frame", "_compile"
CODE = Local(*_DYNAMO, "code")
FRAME_LOCALS = Local(*_DYNAMO, "locals")
FRAME_GLOBALS = Local(*_DYNAMO, "globals")
ONE_GRAPH = Local(*_DYNAMO, "one_graph")
GRAPH = Local("torch._inductor.compile_fx", "compile_fx", "model_")
FX_GRAPH = Local("torch._inductor.compile_fx", "_compile_fx_inner", "gm")
INNER_COMPILE = Local("torch._inductor.compile_fx", "", "inner_compile")
COMPILERS = tuple(
    Local("torch._functorch.aot_autograd", "", name)
    for name in ("bw_compiler", "fw_compiler", "inference_compiler", "partition_fn")
)
LOOKED_UP_KEY = Local("torch._inductor.codecache", "_lookup_graph", "key")
"""The key of the graph that torch's cache looks up, and loads on a hit."""


def read(local: Local) -> Any:
    """Return the variable's innermost value in this thread that is not None."""
    return next((value for value in read_all(local) if value is not None), None)


def has(owner: Any, local: Local) -> bool:
    function: Any = getattr(owner, local.function, None)
    code = getattr(inspect.unwrap(function), "__code__", None)
    return local.name in getattr(code, "co_varnames", ())


def read_all(local: Local) -> Iterator[Any]:
    """Yield the variable's values in this thread, innermost first; None if it is unset."""
    return (frame.f_locals.get(local.name) for frame in read_frames(local))


def read_frames(local: Local) -> Iterator[FrameType]:
    """Yield the frames of this thread that have the variable, innermost first."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        code, module = frame.f_code, frame.f_globals.get("__name__")
        if module == local.module and local.function in ("", code.co_name) and local.name in code.co_varnames:
            yield frame
        frame = frame.f_back
