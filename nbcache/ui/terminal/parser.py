"""The `nbcache` command: parses, runs, and turns errors into one line and a next step."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from nbcache.bench import options as bench_options
from nbcache.core import log
from nbcache.core.cpu_levels import BASELINES
from nbcache.core.errors import ConfigError, NbcacheError
from nbcache.core.settings import Settings
from nbcache.core.text import clean
from nbcache.core.version import __version__

if TYPE_CHECKING:
    from nbcache.ui.terminal.shown import Shown

_Run: TypeAlias = "Callable[[Any, argparse.Namespace, Settings], Shown]"
"""Calls a function of `nbcache.ui.terminal.commands`, which is passed in."""

__all__ = ["main"]

_FAILED, _USAGE = 1, 2
_NOBODY_READS = 128 + 13
"""What shells say of a command that SIGPIPE has ended."""
_SOURCE = "a snapshot file, a notebook that carries one or has one beside it, a URL, or URL#NAME in a store"
_STORE = "redis://host/0, s3://bucket/x, a folder, or whatever else a store can be on"
_BESIDE = "default: the file beside the notebook, NOTEBOOK.nbcache"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, those of the process by default; return the exit status.

    0 is success, 1 failure, 2 wrong usage, 130 an interrupt, 141 that nobody reads any more what is printed,
    as after `| head`. argparse itself exits, by SystemExit.
    """
    try:
        try:
            status = _run(arguments)
        finally:
            sys.stdout.flush()  # here, and not when Python ends, where it is too late to catch anything
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is flushed in the end
        return _NOBODY_READS
    return status


def _run(arguments: Sequence[str] | None) -> int:
    given = _parser().parse_args(arguments)
    try:
        status = given.run(given)
    except NbcacheError as error:
        print(clean("\n".join(error.diagnostics())), file=sys.stderr)
        return _USAGE if isinstance(error, ConfigError) else _FAILED
    except KeyboardInterrupt:
        return 130
    return int(status)


class _Parser(argparse.ArgumentParser):
    """Prints no control characters of arguments, which a shell may have taken from names of files."""

    def _print_message(self, message: str, file: Any = None) -> None:
        super()._print_message(clean(message), file)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="nbcache", description="torch.compile starts at once in notebooks: nbcache in a terminal."
    )
    parser.add_argument("--version", action="version", version=f"nbcache {__version__}")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def verb(name: str, help: str, run: _Run) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
        made.add_argument("--json", action="store_true", help="print JSON")
        made.set_defaults(run=partial(_show, run))
        return made

    inspect = verb(
        "inspect",
        "show what a snapshot holds, who signed it and whether it fits here",
        lambda commands, given, settings: commands.snapshots.inspect(given.source, settings),
    )
    inspect.add_argument("source", metavar="SOURCE", help=_SOURCE)
    verify = verb(
        "verify",
        "check a snapshot whole: its manifest, every artifact, signature and signer",
        lambda commands, given, settings: (
            commands.notebooks.verify_traces(Path(given.source), settings)
            if given.traces
            else commands.snapshots.verify(given.source, settings)
        ),
    )
    verify.add_argument("source", metavar="SOURCE", help=_SOURCE)
    verify.add_argument(
        "--traces",
        action="store_true",
        help="run the notebook SOURCE, and compare its stored traces with what torch traces now",
    )
    snapshot = verb(
        "snapshot",
        "write what is stored here of a notebook into a file, or under a name into a store",
        lambda commands, given, settings: commands.snapshots.snapshot(
            given.notebook, given.dest, settings, everything=given.all
        ),
    )
    snapshot.add_argument("notebook", metavar="NOTEBOOK", type=Path)
    snapshot.add_argument("dest", metavar="DEST", nargs="?", help=f"a file, or URL#NAME; {_BESIDE}")
    everything = "take all that is stored, also what its present cells use no longer"
    snapshot.add_argument("--all", action="store_true", help=everything)
    restore = verb(
        "restore",
        "put what fits here of a trusted snapshot into the local store, for the next kernel",
        lambda commands, given, settings: commands.snapshots.restore(given.source, settings),
    )
    restore.add_argument("source", metavar="SOURCE", help=_SOURCE)
    ls = verb(
        "ls",
        "show the named snapshots in a store",
        lambda commands, given, settings: commands.stores.ls(given.url, settings),
    )
    ls.add_argument("url", metavar="URL", help=_STORE)
    rm = verb(
        "rm",
        "remove your versions of a named snapshot from its store",
        lambda commands, given, settings: commands.stores.rm(
            given.source, settings, all_signers=given.all_signers, sure=given.yes
        ),
    )
    rm.add_argument("source", metavar="URL#NAME")
    rm.add_argument("--all-signers", action="store_true", help="remove the versions of others, too")
    rm.add_argument("--yes", action="store_true", help="do not ask whether to remove those of others")
    gc = verb(
        "gc",
        "remove from a store what no snapshot names, and what no kernel has used for long",
        lambda commands, given, settings: commands.stores.gc(
            given.url, given.grace, given.unused_days, settings
        ),
    )
    gc.add_argument("url", metavar="URL", help=_STORE)
    gc.add_argument(
        "--grace",
        metavar="SECONDS",
        type=_number,
        help="what no snapshot names is marked, and removed after so long; default: an hour",
    )
    gc.add_argument(
        "--unused-days",
        metavar="DAYS",
        type=_number,
        help="remove what kernels share live and have not used for so many days; default: 30",
    )
    merge = verb(
        "merge",
        "write all that trusted snapshots hold into one",
        lambda commands, given, settings: commands.snapshots.merge_files(
            given.sources, given.output, settings
        ),
    )
    merge.add_argument("sources", metavar="SOURCE", nargs="+", help=_SOURCE)
    merge.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="the file to write")
    export = verb(
        "export-mega",
        "write the bundle that plain torch.compiler.load_cache_artifacts takes",
        lambda commands, given, settings: commands.mega_cache.export_mega(given.file, given.source, settings),
    )
    export.add_argument("file", metavar="FILE", type=Path)
    export.add_argument(
        "--from", dest="source", metavar="SOURCE", help=f"{_SOURCE}; default: all that is stored here"
    )
    imported = verb(
        "import-mega",
        "store what a bundle of torch.compiler.save_cache_artifacts holds",
        lambda commands, given, settings: commands.mega_cache.import_mega(
            given.file, given.assume_same_cpu, given.yes, settings
        ),
    )
    imported.add_argument("file", metavar="FILE", type=Path)
    imported.add_argument(
        "--assume-same-cpu",
        action="store_true",
        help="take its CPU graphs, too: made on a CPU like this one, with a compiler that knows all of it",
    )
    imported.add_argument("--yes", action="store_true", help="do not ask whether to trust it")
    attach = verb(
        "attach",
        "put a snapshot into a notebook that is not open",
        lambda commands, given, settings: commands.notebooks.attach(given.notebook, given.snapshot, settings),
    )
    attach.add_argument("notebook", metavar="NOTEBOOK", type=Path)
    attach.add_argument("snapshot", metavar="SNAPSHOT", type=Path, nargs="?", help=_BESIDE)
    detach = verb(
        "detach",
        "take the snapshot out of a notebook that is not open",
        lambda commands, given, settings: commands.notebooks.detach(given.notebook),
    )
    detach.add_argument("notebook", metavar="NOTEBOOK", type=Path)
    extract = verb(
        "extract",
        "write the snapshot that a notebook carries into a file",
        lambda commands, given, settings: commands.notebooks.extract(given.notebook, given.output, settings),
    )
    extract.add_argument("notebook", metavar="NOTEBOOK", type=Path)
    extract.add_argument("-o", "--output", metavar="FILE", type=Path, help=_BESIDE)
    warm = verb(
        "warm",
        "run a notebook without a person and write the snapshot beside it",
        lambda commands, given, settings: commands.notebooks.warm(given.notebook, given.portable, settings),
    )
    warm.add_argument("notebook", metavar="NOTEBOOK", type=Path)
    warm.add_argument(
        "--portable",
        choices=list(BASELINES),
        help="compile CPU code for all CPUs of this kind, instead of for this one",
    )
    run = verb(
        "run",
        "run a notebook without a person and show what hit and what was compiled",
        lambda commands, given, settings: commands.notebooks.run(given.notebook, given.require_hit, settings),
    )
    run.add_argument("notebook", metavar="NOTEBOOK", type=Path)
    run.add_argument("--require-hit", action="store_true", help="exit with 1 where a graph did not hit")
    verb(
        "doctor",
        "check all that nbcache needs here; exit with 1 where there is a problem",
        lambda commands, given, settings: commands.doctor(settings),
    )
    trust = verb("trust", "show and choose whose snapshots may run here", _trust)
    trust.add_argument("action", choices=("list", "add", "remove", "show"), nargs="?", default="list")
    trust.add_argument(
        "signer", metavar="SIGNER", nargs="?", help="a fingerprint; to add, also a snapshot; else also a name"
    )
    trust.add_argument("--name", default="", help="what you call the signer")
    kernel = verb(
        "kernel",
        "install, show, start, stop or uninstall the Jupyter kernel that starts with torch imported",
        lambda commands, given, settings: commands.kernels.kernel(given.action, user=given.user),
    )
    actions = ("install", "status", "start", "stop", "uninstall")
    kernel.add_argument("action", choices=actions, nargs="?", default="status")
    where = "install it for you, also where this Python's environment is a virtual one"
    kernel.add_argument("--user", action="store_true", help=where)

    compares = "run a notebook cold, with torch's caches and restored, and compare the seconds"
    bench = verbs.add_parser("bench", help=compares)
    bench_options.add_arguments(bench)
    bench.set_defaults(run=_bench)
    return parser


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number, 0 or more")
    return number


def _show(run: _Run, given: argparse.Namespace) -> int:
    from nbcache.ui.terminal import commands  # takes a while, and argparse's own errors need none of it

    settings = Settings.from_env(os.environ)
    log.show(settings.log)
    shown = run(commands, given, settings)
    print(json.dumps(shown.data, indent=2) if given.json else shown.text)
    return 0 if shown.ok else _FAILED


def _trust(commands: Any, given: argparse.Namespace, settings: Settings) -> Shown:
    if given.action == "list":
        return commands.signers.signers(settings)  # type: ignore[no-any-return]
    if not given.signer:
        raise ConfigError(
            f"nbcache trust {given.action} needs a signer",
            next_step="give a fingerprint, as `nbcache trust list` and `nbcache inspect FILE` show them",
        )
    from nbcache.ui.terminal.shown import ask

    asker = ask if sys.stdin.isatty() else None
    return commands.signers.trust(given.action, given.signer, given.name, settings, asker)  # type: ignore[no-any-return]


def _bench(given: argparse.Namespace) -> int:
    options = bench_options.from_arguments(given)
    from nbcache.bench.command import run

    return run(options)
