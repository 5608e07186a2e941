"""The two magics: what each word after `%nbcache` does, and what completes their lines."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

from IPython.core.completer import CompletionContext
from IPython.core.error import UsageError
from IPython.core.magic import no_var_expand

from nbcache.torch_bridge import compile_options
from nbcache.ui.ipython import compile_cell
from nbcache.ui.ipython.compile_cell import MAGIC
from nbcache.ui.ipython.compile_targets import is_compilable
from nbcache.ui.ipython.connect_magics import ConnectMagics
from nbcache.ui.ipython.diagnose_magic import DiagnoseMagic
from nbcache.ui.ipython.history_magics import HistoryMagics
from nbcache.ui.ipython.panel_magics import PanelMagics
from nbcache.ui.ipython.session_magics import SessionMagics, completions
from nbcache.ui.ipython.snapshot_magics import ShareMagics
from nbcache.ui.verbs import magic_help, usage

__all__ = ["Magics"]


class Magics:
    """`%nbcache` and `%%compile_cached` of one shell."""

    def __init__(
        self,
        shell: Any,
        own: SessionMagics,
        history: HistoryMagics,
        snapshots: ShareMagics,
        connecting: ConnectMagics,
        diagnosing: DiagnoseMagic,
        panels: PanelMagics,
    ) -> None:
        self._shell = shell
        self._verbs: dict[str, Callable[[list[str]], object]] = {
            "status": own.status,
            "panel": panels.panel,
            "graphs": panels.graphs,
            "why": own.why,
            "stats": history.stats,
            "plan": history.plan,
            "timeline": panels.timeline,
            "config": own.config,
            "doctor": own.doctor,
            "snapshot": snapshots.snapshot,
            "restore": snapshots.restore,
            "verify": snapshots.verify,
            "attach": snapshots.attach,
            "connect": connecting.connect,
            "disconnect": connecting.disconnect,
            "share": panels.share,
            "trust": own.trust,
            "flush": own.flush,
            "clear": own.clear,
            "bench": _bench,
        }
        self._of_code: dict[str, Callable[[str], object]] = {"diagnose": diagnosing.diagnose}
        """The verbs that take the rest of the line as it is: Python's braces and quotes are no one else's."""

    def compile_cached(self, line: str, cell: str) -> Any:
        """Run a marked cell where IPython was asked for the magic itself, as `run_cell_magic` does."""
        result = self._shell.run_cell(f"{MAGIC} {line}\n{cell}")
        result.raise_error()
        return result.result

    compile_cached.__doc__ = compile_cell.help_text()

    @no_var_expand
    def nbcache(self, line: str = "") -> Any:
        __tracebackhide__ = True
        verb, _, code = line.strip().partition(" ")
        if verb in self._of_code:
            self._of_code[verb](code)
            return None
        line = self._shell.var_expand(line, depth=2)  # as IPython does, for the frame that runs this magic
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise UsageError(f"%nbcache: {str(error).lower()}. Usage: {usage()}") from None
        command, arguments = (words[0], words[1:]) if words else ("status", [])
        if command.startswith("-"):
            command, arguments = "status", words
        if command not in self._verbs:
            hint = compile_cell.nearest(command, [*self._verbs, *self._of_code]) or "."
            raise UsageError(f"%nbcache: there is no `{command}`{hint} Usage: {usage()}")
        return self._verbs[command](arguments)

    nbcache.__doc__ = magic_help()

    def complete(self, context: CompletionContext) -> list[str] | None:
        """Return what can stand at the cursor; None where that is on no line of ours."""
        line, symbol = context.text_until_cursor, context.token
        if context.cursor_line == 0 and line.startswith(f"{MAGIC} "):
            hidden = self._shell.user_ns_hidden
            names = [
                name
                for name, value in self._shell.user_ns.items()
                if not name.startswith("_") and name not in hidden and is_compilable(value)
            ]
            return compile_cell.complete(
                line,
                symbol,
                names=names,
                modes=compile_options.known_modes,
                options=compile_options.known_options,
                backends=compile_options.known_backends,
            )
        if not line.lstrip().startswith("%nbcache "):
            return None
        *words, word = line.split() if not line[-1].isspace() else (*line.split(), "")
        if len(words) > 1 and words[1] in self._of_code and not word.startswith("-"):
            return None  # Python, which IPython completes
        verbs = [*self._verbs, *self._of_code]
        candidates = verbs if len(words) == 1 else completions(words[1], words[2:], word)
        # The token may be a part of the word only, from its last `=` or `-` on.
        done = len(word) - len(symbol)
        return [candidate[done:] for candidate in candidates if candidate.startswith(word)]


def _bench(arguments: list[str]) -> None:
    from nbcache.bench.command import run_in_notebook

    run_in_notebook(arguments)
