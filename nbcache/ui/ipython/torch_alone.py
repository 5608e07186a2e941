"""An extension with nbcache's magics and without its caches: `nbcache bench` measures torch alone with it."""

from __future__ import annotations

import contextlib
from typing import Any

from nbcache.torch_bridge import compile_options
from nbcache.ui.ipython.compile_cell import CellTransformer, CompileOptions, TargetCompiler


class _TorchAlone:
    """Compiles the targets of `%%compile_cached` as torch.compile does."""

    def __init__(self) -> None:
        self._options = CompileOptions()
        self._scope = contextlib.ExitStack()
        """Device and defaults that the options of the running cell have set."""

    def take_options(self, options: CompileOptions) -> None:
        self._options = options
        self._scope.enter_context(compile_options.default_device(options.device))
        self._scope.enter_context(compile_options.default_arguments(options.torch_arguments()))

    def compile(self, target: str, value: Any) -> Any:
        return compile_options.compile_target(value, self._options.torch_arguments())

    def end_cell(self, result: object) -> None:
        self._scope.close()


def load_ipython_extension(shell: Any) -> None:
    """Define `%%compile_cached` and a `%nbcache` that does nothing."""
    alone = _TorchAlone()
    shell.input_transformers_cleanup.append(CellTransformer())
    shell.ast_transformers.append(TargetCompiler(lambda: shell.user_ns, alone.compile, alone.take_options))
    shell.register_magic_function(lambda line: None, "line", "nbcache")
    shell.events.register("post_run_cell", alone.end_cell)
