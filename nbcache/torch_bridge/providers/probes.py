"""The answers of torch's probes: whether code for an instruction set compiles and runs."""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.core.key import components, digest, sha256
from nbcache.torch_bridge.events import must_be_stored
from nbcache.torch_bridge.toolchain import compiler_identity
from nbcache.torch_bridge.torch_behavior import TORCHBEHAVIOR

if TYPE_CHECKING:
    from nbcache.torch_bridge.context import Context
    from nbcache.torch_bridge.patches import Patches

__all__ = ["provide_probes"]


_WORKS = b"1"


def _arch_flags(isa: Any) -> str:
    return str(isa.build_arch_flags() if TORCHBEHAVIOR.flags_by_method else isa._arch_flags)


def provide_probes(cpu_vec_isa: ModuleType, context: Context, patches: Patches) -> None:
    """Remember that a vector instruction set works with the compiler that is here (`VecISA.check_build`).

    Finding it out costs a run of that compiler and a process. That one does not work is not remembered:
    the reason may pass, such as a time-out on a busy machine.
    """
    session = context.session

    def known(self: Any, code: str) -> tuple[str | None, bool]:
        """Return the key under which to remember, None for not at all, and whether it is known to work."""
        compiler = compiler_identity()
        if compiler is None or not context.serving():
            return None, False
        program = {"isa": str(self), "flags": _arch_flags(self), "program": sha256(code.encode())}
        key = digest(components({**program, "compiler": compiler}))
        for artifact in session.find("probe", key)[:1]:
            session.cache.record("probe", key, artifact.content, made=False)
            return key, artifact.content == _WORKS
        return key, False

    def check_build(original: Any, self: Any, code: str) -> Any:
        key, works = session.attempt("looking up a probe", partial(known, self, code)) or (None, False)
        if works:
            return True
        must_be_stored(str(self))
        works = original(self, code)
        if works and key is not None:
            session.attempt(
                "recording a probe", partial(session.cache.record, "probe", key, _WORKS, made=True)
            )
        return works

    patches.hook(cpu_vec_isa.VecISA, "check_build", check_build)
