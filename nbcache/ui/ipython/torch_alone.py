"""An extension with nbcache's magics but no caches, for `nbcache bench` to measure torch alone."""

from __future__ import annotations

import contextlib
from typing import Any

from nbcache.torch_bridge import compile_options
from nbcache.ui.ipython.compile_cell import CellTransformer, CompileOptions, TargetCompiler


def load_ipython_extension(shell: Any) -> None:
    """Define `%%compile_cached`, which compiles as torch.compile does, and a `%nbcache` that does nothing."""
    options = CompileOptions()
    scope = contextlib.ExitStack()
    """Undoes the running cell's default device and default arguments."""

    def apply_options(chosen: CompileOptions) -> None:
        nonlocal options
        options = chosen
        scope.enter_context(compile_options.default_device(options.device))
        scope.enter_context(compile_options.default_arguments(options.torch_arguments()))

    def compile_target(target: str, value: Any) -> Any:
        return compile_options.compile_target(value, options.torch_arguments())

    shell.input_transformers_cleanup.append(CellTransformer())
    shell.ast_transformers.append(TargetCompiler(lambda: shell.user_ns, compile_target, apply_options))
    shell.register_magic_function(lambda line: None, "line", "nbcache")
    shell.events.register("post_run_cell", lambda result: scope.close())
