"""The two magics. `%nbcache` parses its line by the table of verbs, calls a verb, and prints the answer."""

from __future__ import annotations

import json
import shlex
import uuid
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

from IPython.core.completer import CompletionContext
from IPython.core.error import UsageError
from IPython.core.magic import no_var_expand
from IPython.display import display as _display

from nbcache.core.settings import Settings
from nbcache.core.text import clean
from nbcache.kernel.session import Session
from nbcache.ui.display.panel import SECTIONS, render_panel
from nbcache.ui.display.render import Rendered
from nbcache.ui.ipython import compile_cell
from nbcache.ui.ipython.compile_cell import MAGIC, did_you_mean, is_compilable
from nbcache.ui.ipython.kernel_verbs import KernelVerbs, confirm
from nbcache.ui.terminal import commands
from nbcache.ui.terminal.shown import Shown, write
from nbcache.ui.verbs import MAGICS, magic_arguments, magic_help, usage, words_of

if TYPE_CHECKING:
    from nbcache.ui.ipython.panel import Panel

_PANELS = {
    "panel": SECTIONS,
    "graphs": ("next run", "graphs", "levels"),
    "sharing": ("people", "snapshot"),
    "settings": ("settings",),
    "space": ("space",),
}
_ELSEWHERE = ("diagnose", "restore", "snapshot", "verify")
"""The verbs whose values IPython completes: Python, and paths."""
_VERBS = list(dict.fromkeys(form.split()[0] for form in MAGICS))
_SEE_HELP = "%nbcache help shows all verbs"
_Answer: TypeAlias = Rendered | Shown | Sequence[str] | None


class Magics:
    """`%nbcache` and `%%compile_cached` of one shell, and the panels that are open."""

    def __init__(self, shell: Any, session: Session, verbs: KernelVerbs) -> None:
        self._shell = shell
        self._session = session
        self._verbs = verbs
        self._open: dict[str, Panel] = {}
        """Kind → its newest panel; only that one is live."""
        self._special: dict[str, Callable[[SimpleNamespace], _Answer]] = {
            "clear": self._clear,
            "config": self._config,
            "graphs": self._graphs,
            "help": lambda arguments: write(magic_help()),
            "panel": self._panel,
            "restore": lambda arguments: verbs.restore(*arguments.words, ask=True),
            "share": self._share,
            "snapshot": self._snapshot,
            "trust": self._trust,
        }
        """Verbs that do more than to call the method of their name in `KernelVerbs`."""

    def compile_cached(self, line: str, cell: str) -> Any:
        """Run a marked cell when IPython calls the magic itself, as `run_cell_magic` does."""
        result = self._shell.run_cell(f"{MAGIC} {line}\n{cell}")
        result.raise_error()
        return result.result

    compile_cached.__doc__ = compile_cell.HELP

    @no_var_expand
    def nbcache(self, line: str = "") -> None:
        __tracebackhide__ = True
        verb, _, code = line.strip().partition(" ")
        if verb == "diagnose":  # Python's braces and quotes stay as they are
            from nbcache.ui.ipython.diagnose_magic import run_line

            show(*run_line(code, self._session, self._shell.user_ns))
            return
        line = self._shell.var_expand(line, depth=2)  # as IPython does, for the frame that runs this magic
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise UsageError(f"%nbcache: {str(error).lower()}. {_SEE_HELP}") from None
        if not words or words[0].startswith("-"):
            words = ["status", *words]
        verb, *words = words
        if verb not in _VERBS:
            hint = did_you_mean(verb, _VERBS) or "."
            raise UsageError(f"%nbcache: there is no `{verb}`{hint} {_SEE_HELP}")
        if verb == "bench":
            from nbcache.bench.command import run_in_notebook

            run_in_notebook(words)
            return
        try:
            arguments = magic_arguments(verb, words)
        except ValueError as error:
            raise UsageError(f"%nbcache {verb}: {error}. Usage: {usage(verb)}") from None
        if verb in self._special:
            answer = self._special[verb](arguments)
        else:
            answer = getattr(self._verbs, verb)(*arguments.words)
        if isinstance(answer, Rendered | Shown):
            show(answer, getattr(arguments, "json", False))
        elif answer is not None:
            write("nbcache: " + "\n".join(answer))

    nbcache.__doc__ = magic_help()

    def _config(self, arguments: SimpleNamespace) -> _Answer:
        for word in arguments.words:
            if word in Settings.names():
                raise UsageError(f"%nbcache config: `{word}` needs a value, {word}=VALUE")
            if "=" not in word:
                raise UsageError(f"%nbcache config: `{word}` is not understood. Usage: {usage('config')}")
        self._verbs.change_all(arguments.words)
        return self._verbs.config() if arguments.json or not arguments.words else None

    def _snapshot(self, arguments: SimpleNamespace) -> None:
        bundle = self._verbs.take(*arguments.words, everything=arguments.all)
        bundle["text/plain"] = clean(f"nbcache: {bundle['text/plain']}")
        if len(bundle) > 1:
            _display(bundle, raw=True)  # type: ignore[no-untyped-call]
        else:
            write(bundle["text/plain"])

    def _trust(self, arguments: SimpleNamespace) -> _Answer:
        action, *signer = arguments.words or [""]
        settings, name = self._session.settings, arguments.name
        if not action:
            if self._verbs.trust_strangers(sure=arguments.yes, name=name):
                return None
            write("nbcache: no snapshot of an untrusted signer is in or beside this notebook\n")
        if action in ("", "list") and not signer:
            return commands.signers(settings)
        if action not in ("add", "remove", "show", "ignore") or not signer:
            raise UsageError(usage("trust"))
        if action == "add":
            return self._verbs.trust(signer[0], name)
        if action == "ignore":
            return self._verbs.ignore(signer[0])
        return commands.trust(action, signer[0], name, settings).lines

    def _clear(self, arguments: SimpleNamespace) -> Sequence[str]:
        words, remove = self._verbs.going(everything=arguments.all)
        command = "%nbcache clear --all" if arguments.all else "%nbcache clear"
        if arguments.yes or confirm(f"nbcache: {words}. Go on? [y/N] ", command):
            return remove()
        return ["nothing was removed"]

    def _panel(self, arguments: SimpleNamespace) -> _Answer:
        kind, *_ = arguments.words or ["panel"]
        if kind == "timeline":
            return self._verbs.timeline()
        if kind not in _PANELS:
            raise UsageError(f"%nbcache panel: there is no panel `{kind}`. Usage: {usage('panel')}")
        if not self._has_widgets():
            return render_panel(self._verbs.now(), self._verbs.facts(), _PANELS[kind])
        self._open_panel(kind)
        return None

    def _graphs(self, arguments: SimpleNamespace) -> _Answer:
        if not arguments.words and not arguments.json:
            return self._panel(SimpleNamespace(words=["graphs"]))
        if not arguments.words:
            raise UsageError(
                "%nbcache graphs takes at most one graph, by torch's id such as `0/1` or "
                "by its function, and optionally --json"
            )
        for rendered in self._verbs.graph(*arguments.words):
            show(rendered, arguments.json)
        return None

    def _share(self, arguments: SimpleNamespace) -> None:
        lines = self._verbs.share(*arguments.words)
        if arguments.json:
            print(json.dumps({"said": lines[0], "restore": lines[1], "trust": lines[3]}, indent=2))
        elif self._has_widgets():
            self._open_panel("sharing").say(lines)
        else:
            write("nbcache: " + "\n\n".join(lines))

    def draw(self, *, facts: bool = False) -> None:
        """Draw the open panels soon; with `facts`, gather those as well."""
        for panel in [*self._open.values()]:
            panel.ask(facts=facts)

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def _open_panel(self, kind: str) -> Panel:
        from nbcache.ui.ipython.panel import Panel  # widgets take a moment to import

        if (previous := self._open.pop(kind, None)) is not None:
            previous.close()
        panel = Panel(self._verbs, self._publisher(), _PANELS[kind])
        panel.open()
        self._open[kind] = panel
        return panel

    def _has_widgets(self) -> bool:
        """Return whether a person may press buttons: otherwise, the front end does not allow questions."""
        return bool(getattr(getattr(self._shell, "kernel", None), "_allow_stdin", False))

    def _publisher(self) -> Callable[[dict[str, Any], bool], None]:
        """Return a function that shows the widgets once, and static HTML that updates replace."""
        publisher, transient = self._shell.display_pub, {"display_id": f"nbcache-{uuid.uuid4().hex}"}

        def publish(data: dict[str, Any], update: bool) -> None:
            is_saved = "application/vnd.jupyter.widget-view+json" not in data
            publisher.publish(data, {}, transient=transient if is_saved else {}, update=update)

        return publish

    def complete(self, context: CompletionContext) -> list[str] | None:
        """Return completions at the cursor; None if IPython completes it, as Python or as a path."""
        line, symbol = context.text_until_cursor, context.token
        if context.cursor_line == 0 and line.startswith(f"{MAGIC} "):
            return compile_cell.complete(line, symbol, self._targets)
        if not line.lstrip().startswith("%nbcache "):
            return None
        *words, word = line.split() if not line[-1].isspace() else (*line.split(), "")
        if words[1:2] and words[1] in _ELSEWHERE and not word.startswith("-"):
            return None
        candidates = _VERBS if len(words) == 1 else _completions(words[1], word)
        # The token may be only the part of the word after its last `=` or `-`.
        done = len(word) - len(symbol)
        return sorted(candidate[done:] for candidate in candidates if candidate.startswith(word))

    def _targets(self) -> list[str]:
        hidden, namespace = self._shell.user_ns_hidden, self._shell.user_ns
        names = [name for name, value in namespace.items() if is_compilable(value)]
        return [name for name in names if not name.startswith("_") and name not in hidden]


def _completions(verb: str, word: str) -> list[str]:
    """Return candidates for `word` in a line `%nbcache verb … word`."""
    if verb == "config" and "=" in word:
        name = word.partition("=")[0]
        return [f"{name}={value}" for value in Settings.choices(name)]
    settings = Settings.names() if verb == "config" else ()
    return [*words_of(verb), *(f"{name}=" for name in settings)]


def show(answer: Rendered | Shown, as_json: bool) -> None:
    if as_json:
        print(json.dumps(answer.data, indent=2))
    elif isinstance(answer, Shown):
        write(answer.text)
    else:
        _display(answer)  # type: ignore[no-untyped-call]
