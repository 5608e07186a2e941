"""The line `%%compile_cached …`: its options, its help and completion, and how it leaves the cell's source.

The magic runs no nested cell. `CellTransformer`, the last of IPython's cleanup transforms, puts a string
literal in place of the line, and everything else stays where it was:

    %%compile_cached f --mode max-autotune          'nbcache: %%compile_cached f --mode max-autotune'
    y = await g(f(x))                               y = await g(f(x))

so that line numbers, top-level `await`, the last expression's display and errors are IPython's own. The
literal is how the options travel: `compile_targets.TargetCompiler` finds it in the syntax tree just before
that very tree runs, and takes it out. Nothing is remembered in between, so a source that is transformed and
never run, a nested `run_cell`, a macro, or `%%time` above the line cannot get another cell's options.
"""

from __future__ import annotations

import ast
import difflib
import functools
import re
import shlex
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from keyword import iskeyword
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

__all__ = [
    "MAGIC",
    "CellTransformer",
    "CompileOptions",
    "OptionValue",
    "check",
    "complete",
    "find",
    "help_text",
    "marked",
    "nearest",
    "parse",
    "usage",
    "usage_error",
]

MAGIC = "%%compile_cached"
_MARK = "nbcache: "

OptionValue: TypeAlias = bool | int | float | str | None


class _Flag(NamedTuple):
    metavar: str
    """Name of its value; empty for a switch."""
    help: str


_FLAGS: Mapping[str, _Flag] = {
    "--mode": _Flag("M", "torch.compile's mode: default, reduce-overhead, max-autotune, …"),
    "--fullgraph": _Flag("", "raise an error at a graph break"),
    "--dynamic": _Flag("", "compile for dynamic shapes from the start"),
    "--no-dynamic": _Flag("", "never compile for dynamic shapes; with neither, torch decides"),
    "--backend": _Flag("B", "torch.compile's backend; inductor unless given"),
    "--options": _Flag("K=V …", "options for the backend, as `max_autotune=True triton.cudagraphs=False`"),
    "--device": _Flag("D", "torch's default device while the cell runs: cpu, cuda, cuda:1, …"),
    "--name": _Flag("N", "what the report calls this cell"),
    "--require-hit": _Flag("", "fail the cell if it compiled anything that no cache had"),
    "--no-save": _Flag("", "store nothing of what the cell compiles"),
    "--quiet": _Flag("", "show no report, unless something went wrong"),
}
_INDUCTOR_EXTRA = frozenset({"use_aoti"})
"""What `torch.compile(options=…)` takes although `torch._inductor.list_options()` does not list it."""
_DEVICES = ("cpu", "cuda", "mps", "xpu")


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """What one `%%compile_cached` line asks for."""

    targets: tuple[str, ...] = ()
    """Names, or dotted paths of attributes, in the order given, each once."""
    mode: str | None = None
    fullgraph: bool = False
    dynamic: bool | None = None
    """None leaves it to torch, which compiles for dynamic shapes once a size has changed."""
    backend: str | None = None
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    device: str | None = None
    name: str | None = None
    require_hit: bool = False
    save: bool = True
    quiet: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))

    def torch_arguments(self) -> dict[str, Any]:
        """Return those arguments of `torch.compile` that were given; `device` and `name` are not among them.

        `options` is a new dictionary at every call, because torch removes entries from it.
        """
        arguments: dict[str, Any] = {}
        if self.mode is not None:
            arguments["mode"] = self.mode
        if self.fullgraph:
            arguments["fullgraph"] = True
        if self.dynamic is not None:
            arguments["dynamic"] = self.dynamic
        if self.backend is not None:
            arguments["backend"] = self.backend
        if self.options:
            arguments["options"] = dict(self.options)
        return arguments


def usage() -> str:
    """Return the usage line."""
    parts = [f"{name} {flag.metavar}" if flag.metavar else name for name, flag in _FLAGS.items()]
    line = " ".join(f"[{part}]" for part in parts)
    return f"{MAGIC} [TARGET …] {line.replace('[--dynamic] [--no-dynamic]', '[--dynamic / --no-dynamic]')}"


def help_text() -> str:
    """Return the magic's docstring: what `%%compile_cached?` shows."""
    left = {name: f"{name} {flag.metavar}".rstrip() for name, flag in _FLAGS.items()}
    width = max(map(len, left.values())) + 2
    lines = "\n".join(f"  {left[name]:<{width}}{flag.help}" for name, flag in _FLAGS.items())
    return f"""Run the cell with torch.compile's caches filled, and report per graph what was hit.

{usage()}

  {"TARGET …":<{width}}functions or modules to compile with these arguments: one that the cell binds at
  {"":<{width}}top level, right after the statement that binds it (each time); one that exists
  {"":<{width}}already, before the cell starts
{lines}

Example:

    %%compile_cached model --mode max-autotune
    model = Net().eval()
    y = model(x)        # compiled, or from a cache
    y.mean()            # shown as in any cell
"""


@functools.cache
def _usage_error_type() -> type[Exception]:
    from IPython.core.error import InputRejected, UsageError

    class CellUsageError(InputRejected, UsageError):
        """A `UsageError` that is also let through by IPython's AST stage, and is an `error` output.

        IPython writes a plain `UsageError` to stderr only, so that a notebook run by papermill, which looks
        for `error` outputs, passes; and an AST transformer that raises anything but `InputRejected` is
        unregistered while the cell runs on.
        """

        def _render_traceback_(self) -> list[str]:
            return [f"UsageError: {self}"]

    CellUsageError.__name__ = CellUsageError.__qualname__ = "UsageError"
    return CellUsageError


def usage_error(problem: str, *, show_usage: bool = False) -> Exception:
    """Return the `UsageError` to raise: IPython shows it as one line, and the cell has failed."""
    end = "" if problem.endswith("?") else "."
    return _usage_error_type()(f"{MAGIC}: {problem}" + (f"{end} Usage: {usage()}" if show_usage else ""))


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean …?` with the names in `known` that are like `word`, or an empty string."""
    matches = difflib.get_close_matches(word, list(known), n=3)
    return f"; did you mean {', '.join(f'`{match}`' for match in matches)}?" if matches else ""


def parse(line: str) -> CompileOptions:
    """Return the options that stand on `line`, which begins after `%%compile_cached`.

    Raises a `UsageError` with the usage line for whatever is not understood.
    """
    words = deque(_words(line))
    targets: dict[str, None] = {}
    given: dict[str, str] = {}
    options: dict[str, OptionValue] = {}
    while words:
        word = words.popleft()
        if not word.startswith("-"):
            targets[_target(_unquoted(word))] = None
            continue
        name, equals, value = word.partition("=")
        flag = _FLAGS.get(name)
        if flag is None:
            raise usage_error(f"unknown option `{name}`{nearest(name, _FLAGS)}", show_usage=True)
        if name == "--options":
            pairs = [value] if equals else list(_take_pairs(words))
            if not pairs:
                raise usage_error("`--options` needs K=V", show_usage=True)
            for key, option in map(_pair, pairs):
                if key in options:
                    raise usage_error(f"option `{key}` is given twice", show_usage=True)
                options[key] = option
            continue
        if name in given:
            raise usage_error(f"`{name}` is given twice", show_usage=True)
        if equals and not flag.metavar:
            raise usage_error(f"`{name}` takes no value", show_usage=True)
        if flag.metavar and not equals and words and not words[0].startswith("-"):
            value = words.popleft()
        given[name] = _unquoted(value)
        if flag.metavar and not given[name]:
            raise usage_error(f"`{name}` needs a value", show_usage=True)
    for one, other in (("--dynamic", "--no-dynamic"), ("--mode", "--options")):
        if one in given and (other in given or (other == "--options" and options)):
            raise usage_error(f"`{one}` and `{other}` exclude each other", show_usage=True)
    return CompileOptions(
        targets=tuple(targets),
        mode=given.get("--mode"),
        fullgraph="--fullgraph" in given,
        dynamic=True if "--dynamic" in given else False if "--no-dynamic" in given else None,
        backend=given.get("--backend"),
        options=options,
        device=given.get("--device"),
        name=given.get("--name"),
        require_hit="--require-hit" in given,
        save="--no-save" not in given,
        quiet="--quiet" in given,
    )


_QUOTES = ("'", '"')
_WORD = re.compile(r"""(?:[^\s'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")+""")


def _words(line: str) -> Iterator[str]:
    """Yield the words of `line` as a shell splits them, with their quotes still on."""
    position = 0
    while rest := line[position:].lstrip():
        position = len(line) - len(rest)
        word = _WORD.match(line, position)
        if word is None or (word.end() < len(line) and not line[word.end()].isspace()):
            raise usage_error(f"a quote or backslash is left open in `{rest.rstrip()}`", show_usage=True)
        yield word[0]
        position = word.end()


def _unquoted(word: str) -> str:
    return "".join(shlex.split(word))


def _target(word: str) -> str:
    if "=" in word:
        raise usage_error(f"`{word}` is neither a target nor after `--options`", show_usage=True)
    if not all(part.isidentifier() and not iskeyword(part) for part in word.split(".")):
        raise usage_error(f"`{word}` is not the name of a function or module", show_usage=True)
    return word


def _take_pairs(words: deque[str]) -> Iterator[str]:
    while words and "=" in words[0] and not words[0].startswith("-"):
        yield words.popleft()


def _pair(word: str) -> tuple[str, OptionValue]:
    """Return one K=V with V's type: a number, True, False, None, or else text; quotes make it text."""
    whole = word[:1] in _QUOTES
    key, equals, raw = (_unquoted(word) if whole else word).partition("=")
    if not equals or not re.fullmatch(r"\w[\w.-]*", key):
        raise usage_error(f"`--options` needs K=V, not `{word}`", show_usage=True)
    text = raw if whole else _unquoted(raw)
    quoted = not whole and raw[:1] in _QUOTES
    if text in ("true", "false") and not quoted:
        return key, text == "true"
    try:
        literal = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return key, text
    if isinstance(literal, str):
        return key, literal
    return key, literal if isinstance(literal, bool | int | float | None) and not quoted else text


def check(
    options: CompileOptions,
    known_options: Sequence[str] | None = None,
    known_modes: Sequence[str] | None = None,
    known_backends: Sequence[str] | None = None,
) -> None:
    """Raise a `UsageError` with the nearest names if torch knows no such backend, mode or option.

    What is None is not checked; modes and options are inductor's, and not checked for other backends.
    """
    if options.backend is not None and known_backends is not None and options.backend not in known_backends:
        raise usage_error(f"unknown backend `{options.backend}`{nearest(options.backend, known_backends)}")
    if options.backend not in (None, "inductor"):
        return
    if options.mode is not None and known_modes is not None and options.mode not in known_modes:
        raise usage_error(
            f"unknown mode `{options.mode}` (torch has {', '.join(known_modes)})"
            f"{nearest(options.mode, known_modes)}"
        )
    if known_options is None:
        return
    for key in options.options:
        if key.replace("-", "_") not in known_options and key not in _INDUCTOR_EXTRA:
            raise usage_error(f"unknown option `{key}` for `--options`{nearest(key, known_options)}")


def _arguments(line: str) -> str | None:
    """Return what follows the magic's name on `line`; None where it is not this magic, or asks for help."""
    match = re.fullmatch(rf"{MAGIC}(?:\s+(.*))?", line.rstrip())
    return None if match is None else match[1] or ""


def marked(literal: object) -> str | None:
    """Return the arguments that `CellTransformer` left in this constant, if it is its mark."""
    if isinstance(literal, str) and literal.startswith(_MARK):
        return _arguments(literal.removeprefix(_MARK))
    return None


def find(source: str) -> str | None:
    """Return the arguments of the cell's `%%compile_cached` line, from its raw or its transformed source."""
    first = next((line.strip() for line in source.splitlines() if line.strip()), "")
    if first.startswith((f"'{_MARK}", f'"{_MARK}')):
        try:
            return marked(ast.literal_eval(first))
        except (ValueError, SyntaxError):
            return None
    return _arguments(first)


class CellTransformer:
    """Replaces a cell's `%%compile_cached` line: the last of the shell's `input_transformers_cleanup`.

    Last, because IPython's own cleanup removes blank first lines, common indentation and prompts; its
    `cell_magic` comes later. Raises a `UsageError` where the line is wrong or nothing stands below it.
    """

    has_side_effects = True
    """Keeps it out of `check_complete`, which then takes the cell for a cell magic, as it does any other, and
    which would let a `UsageError` out to the terminal's prompt."""

    def __call__(self, lines: list[str]) -> list[str]:
        arguments = _arguments(lines[0]) if lines else None
        if arguments is None:
            return lines
        body = next((line for line in lines[1:] if line.strip()), None)
        if body is None:
            raise usage_error("the cell is empty: put the code to run below this line", show_usage=True)
        if body.startswith("%%"):
            raise usage_error(f"`{body.split()[0]}` goes above this line, not below it", show_usage=True)
        parse(arguments)
        return [f"{_MARK + lines[0].rstrip()!r}\n", *lines[1:]]


def complete(
    line: str,
    symbol: str,
    *,
    names: Sequence[str] = (),
    modes: Sequence[str] | Callable[[], Sequence[str]] = (),
    options: Sequence[str] | Callable[[], Sequence[str]] = (),
    backends: Sequence[str] | Callable[[], Sequence[str]] = (),
) -> list[str]:
    """Return what can stand where `symbol` stands, at the end of `line` (which ends at the cursor).

    `names` are the targets to offer; the others may be functions, called only when needed: they need torch.
    """
    before = line.removesuffix(symbol)
    words = before.replace("=", "= ").split()
    if not words or not before.endswith((" ", "\t", "=")):
        return []
    values = {"--mode": modes, "--backend": backends, "--device": _DEVICES, "--name": ()}
    previous = words[-1].rstrip("=")
    if previous in values:
        candidates = list(_known(values[previous]))
    elif previous == "--options":
        candidates = [f"{option}=" for option in _known(options)]
    elif before.endswith("="):
        candidates = ["True", "False", "None"]
    else:
        used = {word.rstrip("=") for word in words}
        unused = [flag for flag in _FLAGS if flag not in used or flag == "--options"]
        candidates = [*(name for name in names if name not in used), *unused]
        if _in_options(words):
            candidates += [f"{option}=" for option in _known(options)]
    return [candidate for candidate in candidates if candidate.startswith(symbol)]


def _in_options(words: Sequence[str]) -> bool:
    """Return whether the last word is the V of a K=V."""
    return len(words) > 1 and words[-2].endswith("=") and not words[-2].startswith("-")


def _known(names: Sequence[str] | Callable[[], Sequence[str]]) -> Sequence[str]:
    return names() if callable(names) else names
