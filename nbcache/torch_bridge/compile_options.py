"""Values that torch.compile's arguments may have, and functions that apply arguments to a target."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

_compiled: weakref.WeakKeyDictionary[Any, tuple[Any, dict[str, Any]]] = weakref.WeakKeyDictionary()
"""Target of `compile_target` → a weak reference to its compiled call, and the arguments."""


def known_modes() -> Sequence[str]:
    import torch._inductor

    return ["default", *(mode for mode in torch._inductor.list_mode_options() if mode != "default")]


def known_options() -> Sequence[str]:
    import torch._inductor

    return list(torch._inductor.list_options())


def known_backends() -> Sequence[str]:
    import torch._dynamo

    return list(torch._dynamo.list_backends(exclude_tags=()))


def compile_target(value: Any, arguments: Mapping[str, Any]) -> Any:
    """Compile and return `value`; a module in place, so that its type and `state_dict` keys stay the same."""
    import torch

    with contextlib.suppress(TypeError):  # an object without weak references is compiled each time
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
    """Compile as `Module.compile` does, but also a module that inherits its `forward` from torch.

    Dynamo skips torch's own files. Only `torch.compile(module)` adds a frame that it compiles (2.13).
    """
    import torch

    module.compile(**arguments)
    if not _has_torchs_forward(module):
        return
    call = module._call_impl

    def forward(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    name = type(module).__name__
    forward.__code__ = forward.__code__.replace(co_name=name, co_qualname=name)
    module._compiled_call_impl = torch.compile(forward, **arguments)


def _has_torchs_forward(module: Any) -> bool:
    own = inspect.getattr_static(type(module), "forward", None)
    return str(getattr(own, "__module__", "")).startswith("torch.nn.")


def uncompiled_modules(namespace: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the modules that `Module.compile` has left as they were."""
    torch: Any = sys.modules.get("torch")
    for name, value in [*namespace.items()] if torch is not None else ():
        if not issubclass(type(value), torch.nn.Module) or name.startswith("_"):  # as `_` and `_4`
            continue
        called = getattr(vars(value).get("_compiled_call_impl"), "_torchdynamo_orig_callable", None)
        if getattr(called, "__func__", None) is torch.nn.Module._call_impl and _has_torchs_forward(value):
            yield name


@contextlib.contextmanager
def default_arguments(arguments: Mapping[str, Any]) -> Iterator[None]:
    """Make `torch.compile` use `arguments` as defaults in the block."""
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
    """Create tensors on `device`, as `torch.set_default_device` does."""
    if device is None:
        return contextlib.nullcontext()
    import torch

    scope: AbstractContextManager[Any] = torch.device(device)
    return scope
