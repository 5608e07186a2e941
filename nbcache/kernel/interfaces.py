"""The compiler as a session uses it."""

from __future__ import annotations

from typing import Any, Protocol

from nbcache.kernel.prewarming import Steps

__all__ = ["CompilerBridge"]


class CompilerBridge(Protocol):
    """What a session needs of the compiler; `torch_bridge` implements it for torch.

    Once installed, the bridge calls `emit` of the session for what the compiler does, and `find` when it is
    about to look an artifact up; and of the session's cache `environment_ready` when the compiler is there,
    and `record` for each artifact that it makes or hits.
    """

    def install(self, session: Any) -> None:  # a `Session`, which imports this
        """Begin to watch and serve; at once where the compiler is there, else when it is imported."""

    def uninstall(self) -> None:
        """Leave every patched name, flag, hook and environment variable as it was found."""

    def configure(self) -> None:
        """Compile for what the session's settings say now; ConfigError where that is impossible."""

    def clear(self) -> None:
        """Empty the compiler's own cache folder, if it is one of ours."""

    def disown(self) -> None:
        """Have what the compiler finds in its folder count as others' from now on; may be called often."""

    def prewarm(self) -> Steps:
        """Return what can be done before the first compile, in slices for the kernel's own thread."""
