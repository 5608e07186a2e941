"""torch.compile's arguments: which values torch knows, and how a target is compiled with them."""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

_compiled: weakref.WeakKeyDictionary[Any, tuple[Any, dict[str, Any]]] = weakref.WeakKeyDictionary()
"""Targets of `compile_target` → a weak reference to what a module calls since then, and the arguments.

Weak, since that refers to the module: it would keep the module, and its parameters, for good.
"""


def known_modes() -> Sequence[str]:
    """Return the names that `mode` takes."""
    import torch._inductor

    return ["default", *(mode for mode in torch._inductor.list_mode_options() if mode != "default")]


def known_options() -> Sequence[str]:
    """Return the names that `options` takes, some 600."""
    import torch._inductor

    return list(torch._inductor.list_options())


def known_backends() -> Sequence[str]:
    """Return the names that `backend` takes."""
    import torch._dynamo

    return list(torch._dynamo.list_backends(exclude_tags=()))


def compile_target(value: Any, arguments: Mapping[str, Any]) -> Any:
    """Return `value` compiled with torch.compile's `arguments`.

    A module is compiled in place, so that its type and the keys of its `state_dict` stay. What was
    compiled with these arguments already is returned as it is, so that running a cell again
    recompiles nothing.
    """
    import torch

    with contextlib.suppress(TypeError):  # what cannot be referred to weakly is compiled each time
        if _compiled.get(value) == (_call(value), dict(arguments)):
            return value
    if isinstance(value, torch.nn.Module):
        _compile_in_place(value, arguments)
        compiled: Any = value
    else:
        compiled = torch.compile(getattr(value, "_torchdynamo_orig_callable", value), **arguments)
    with contextlib.suppress(TypeError):
        _compiled[compiled] = (_call(compiled), dict(arguments))
    return compiled


def _call(value: Any) -> weakref.ref[Any] | None:
    call = getattr(value, "_compiled_call_impl", None)
    return None if call is None else weakref.ref(call)


def _compile_in_place(module: Any, arguments: Mapping[str, Any]) -> None:
    """Compile `module` as `Module.compile` does, and also where that compiles nothing.

    Dynamo skips torch's own files, and with them a `Sequential` whose `forward` nobody has overridden:
    `torch.compile(module)` gives such a module a frame of its own to compile, `Module.compile` does not
    (2.13). Dynamo inlines that frame, so that a call costs no more.
    """
    import torch

    module.compile(**arguments)
    own = inspect.getattr_static(type(module), "forward", None)
    if not str(getattr(own, "__module__", "")).startswith("torch.nn."):
        return
    call = module._call_impl

    def forward(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    name = type(module).__name__
    forward.__code__ = forward.__code__.replace(co_name=name, co_qualname=name)
    module._compiled_call_impl = torch.compile(forward, **arguments)


@contextlib.contextmanager
def default_arguments(arguments: Mapping[str, Any]) -> Iterator[None]:
    """Make these arguments the defaults of `torch.compile`."""
    if not arguments:
        yield
        return
    import torch

    original = torch.compile

    @functools.wraps(original)
    def compile(model: Any = None, **own: Any) -> Any:
        defaults = dict(arguments)
        if own.get("mode") is not None or own.get("options") is not None:  # torch takes one of the two
            defaults.pop("mode", None)
            defaults.pop("options", None)
        return original(model, **{**defaults, **own})

    torch.compile = compile
    try:
        yield
    finally:
        torch.compile = original


def default_device(device: str | None) -> AbstractContextManager[Any]:
    """Make `device` what tensors are created on, as `torch.set_default_device` does."""
    if device is None:
        return contextlib.nullcontext()
    import torch

    scope: AbstractContextManager[Any] = torch.device(device)
    return scope
