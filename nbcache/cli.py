"""The `nbcache` command: parses, runs, and turns errors into one line and a next step."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from nbcache import __version__
from nbcache.bench import options as bench_options
from nbcache.errors import ConfigError, NbcacheError

__all__ = ["main"]

_FAILED, _USAGE = 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, those of the process by default; return the exit status.

    0 is success, 1 failure, 2 wrong usage, 130 an interrupt. argparse itself exits, by SystemExit.
    """
    given = _parser().parse_args(arguments)
    try:
        status = given.run(given)
    except NbcacheError as error:
        print("\n".join(error.diagnostics()), file=sys.stderr)
        return _USAGE if isinstance(error, ConfigError) else _FAILED
    except KeyboardInterrupt:
        return 130
    return int(status)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nbcache", description="torch.compile starts at once in notebooks: nbcache in a terminal."
    )
    parser.add_argument("--version", action="version", version=f"nbcache {__version__}")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    bench = verbs.add_parser("bench", help="measure cold, restored and cached starts of a model")
    bench_options.add_arguments(bench)
    bench.set_defaults(run=_bench)
    return parser


def _bench(given: argparse.Namespace) -> int:
    options = bench_options.from_arguments(given)
    from nbcache.bench.command import run

    return run(options)
