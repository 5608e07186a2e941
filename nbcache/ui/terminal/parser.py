"""The `nbcache` command: parses arguments, runs a command, and prints errors with their next step."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

from nbcache.bench import command as bench
from nbcache.core import log
from nbcache.core.errors import ConfigError, NbcacheError
from nbcache.core.settings import Settings
from nbcache.core.text import clean
from nbcache.core.version import __version__
from nbcache.ui.verbs import COMMANDS, add_arguments, plain_text

_FAILED, _USAGE = 1, 2
_NOBODY_READS = 128 + 13
"""The status that shells return for a command that SIGPIPE has ended."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return the exit status: 0, 1 for failure, 2 for wrong usage, 130, 141."""
    try:
        try:
            parser = _parser()
            parsed = parser.parse_args(arguments)
            if "run" not in parsed:
                parser.print_help()
                return 0
            return int(parsed.run(parsed))
        finally:
            sys.stdout.flush()  # now: errors of the flush at exit cannot be caught
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes the rest at exit
        return _NOBODY_READS
    except NbcacheError as error:
        print(clean("\n".join(error.diagnostics())), file=sys.stderr)
        return _USAGE if isinstance(error, ConfigError) else _FAILED
    except KeyboardInterrupt:
        return 130


class _Parser(argparse.ArgumentParser):
    """Removes control characters of arguments from messages: a shell may have read them from file names."""

    def error(self, message: str) -> NoReturn:
        super().error(message.replace("\n", " "))

    def _print_message(self, message: str, file: Any = None) -> None:
        super()._print_message(clean(message), file)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="nbcache", description="torch.compile starts at once in notebooks: nbcache in a terminal."
    )
    parser.add_argument("--version", action="version", version=f"nbcache {__version__}")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND")
    for form, text in COMMANDS.items():
        name, help = form.partition(" ")[0], plain_text(text)
        command = verbs.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
        if name == "bench":
            bench.add_arguments(command)
            command.set_defaults(run=bench.run)
            continue
        command.add_argument("--json", action="store_true", help="print JSON")
        add_arguments(command, form)
        command.set_defaults(run=partial(_show, name))
    return parser


def _show(name: str, parsed: argparse.Namespace) -> int:
    from nbcache.ui.terminal.commands import RUNS  # slow, and not needed for argparse's errors

    settings = Settings.from_env(os.environ)
    log.show(settings.log)
    arguments = {key: value for key, value in vars(parsed).items() if key not in ("run", "json")}
    shown = RUNS[name](**arguments, settings=settings)
    print(json.dumps(shown.data, indent=2) if parsed.json else shown.text)
    return 0 if shown.ok else _FAILED
