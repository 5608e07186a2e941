"""The table of all verbs, from which usage, help, completion, the parser and docs/commands.md are made.

A form is a usage line and its text. Capitals mean a value, brackets an optional part, `|` a choice, and an
ellipsis one value or more. The text is Markdown for the docs; help omits the links.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from nbcache.core.cpu_levels import BASELINES

Forms = Mapping[str, str]
"""Usage line → its text, in the order of the docs."""


def _forms(text: str) -> Forms:
    """Return usage line → the indented lines below it, joined."""
    forms: dict[str, str] = {}
    for line in text.strip().splitlines():
        if line.startswith(" "):
            *_, usage = forms
            forms[usage] = f"{forms[usage]} {line.strip()}".strip()
        else:
            forms[line] = ""
    return forms


MAGICS = _forms("""
status [--json]
    show this kernel's graphs by cell, and the size of the local store; `%nbcache` alone does the same
panel [graphs | timeline | sharing | settings | space]
    show the session, or a part of it, as a live [panel](panels.md) with a button for each verb;
    `timeline` is a report
graphs [GRAPH [--json]]
    show the panel of graphs; or all details of [one graph](panels.md#a-graph), by torch's compile id
    such as `0/1`, or of a function's graphs: differences, guards, generated code
why [GRAPH] [--json]
    say for each graph of the last cell, or for the named ones, [why it missed](why.md), what differs
    from the nearest stored graph, and what to do
stats [--json]
    show [hits and saved seconds](stats.md) of this kernel, of this notebook and of all notebooks
plan [--json]
    show [which graphs the next run of each cell will hit](stats.md#nbcache-plan), and its seconds
timeline [--json]
    show [where the seconds of each cell went](stats.md#nbcache-timeline), cold beside restored, and how
    many graphs each kernel hit
diagnose CALL [--mode M] [--runs N] [--json]
    run a call [eager and compiled](diagnose.md), and undo its changes: seconds, results, graph breaks,
    recompiles for other sizes, memory on a GPU, and what to do
config [--json]
    show nbcache's settings and those of [torch's caches](settings.md), and where each value comes from
config NAME=VALUE …
    change a setting for this kernel
doctor [--json]
    [check](troubleshooting.md) everything that nbcache needs here, and say what to do about problems
snapshot [FILE] [--all]
    write the stored graphs that the present cells use, or all, into a [snapshot](snapshots.md), by
    default beside the notebook
snapshot URL#NAME
    write it into [Redis or an object store](snapshots.md#snapshots-in-redis-and-object-stores)
snapshot notebook
    put it into this cell's output, which is saved with the notebook (5 MB at most)
restore [SOURCE]
    use a snapshot: a file, another notebook, a URL, `URL#NAME` in a store
verify [SOURCE] [--json]
    check the notebook's snapshots in full, or those at a SOURCE, as [in a terminal](#in-a-terminal)
attach
    update the snapshot beside the notebook, and show how to put it into the notebook
share [NAME] [--json]
    write a snapshot into the connected store, or into the file beside the notebook, and show the line
    that a colleague pastes; with widgets, in the [panel](panels.md) of sharing
connect [URL]
    share compiled graphs [live](shared-level.md) with everybody who connects to the same store; once
    connected, `connect` alone lists who has published what
disconnect
    stop sharing live
trust [--yes] [--name NAME]
    show the signers of this notebook's snapshots, and ask whether to trust them; without any, show your
    own fingerprint and the signers that you trust
trust add SIGNER [--name NAME]
    trust a signer: a fingerprint, or a snapshot that the signer has signed
trust [list | remove SIGNER | show SIGNER]
    as [in a terminal](#in-a-terminal)
trust ignore SIGNER
    ignore an untrusted signer in this kernel; `trust add` takes that back
flush
    wait, a minute at most, until all compiled graphs are stored and, if connected, shared
bench [NOTEBOOK | MODULE:FUNCTION] …
    run it cold, with torch's caches and restored, [side by side](benchmark.md), in other processes;
    takes the options of `nbcache bench`
clear [--yes]
    remove this notebook's stored graphs, after asking, and empty torch's folder if nbcache chose it;
    graphs that other notebooks use stay, and so do shared ones
clear --all [--yes]
    remove the stored graphs of all notebooks, after asking
help
    show this list
""")

COMMANDS = _forms("""
snapshot NOTEBOOK [DEST] [--all]
    write the stored graphs that a notebook's cells use, or all, into the file beside it, another file,
    or `URL#NAME` in a store
restore SOURCE
    store the graphs of trusted snapshots that fit here, so that the next kernel hits
ls URL
    show the named snapshots in a [store](snapshots.md#snapshots-in-redis-and-object-stores)
rm URL#NAME [--all-signers] [--yes]
    remove your versions of a named snapshot from its store, or those of all signers
gc URL [--grace SECONDS] [--unused-days DAYS]
    remove artifacts that no snapshot uses, and live ones that no kernel has used for 30 days
inspect SOURCE
    show the contents of each version of a snapshot, who signed and compiled it, and what differs here;
    shows a cell's number and first line if it finds the notebook; uses no artifact
verify SOURCE [--traces]
    check snapshots in full; exit status 1 if none can be used, or if one that could be used is wrong.
    With `--traces`, run the notebook SOURCE, and compare its stored [traces](traces.md) with new ones;
    exit status 1 if one differs, or none is stored
export-mega FILE [--from SOURCE]
    write a bundle for plain torch's `torch.compiler.load_cache_artifacts`, with the graphs of a trusted
    snapshot or all stored graphs
import-mega FILE [--assume-same-cpu] [--yes]
    store the graphs of such a bundle, after asking, because nobody has signed it
merge SOURCE … -o OUTPUT
    write the graphs of several trusted snapshots into one that you sign
attach NOTEBOOK [SNAPSHOT]
    put a snapshot into a notebook that is not open, beside the versions of others
detach NOTEBOOK
    take the snapshot out of a notebook that is not open
extract NOTEBOOK [-o OUTPUT]
    write the snapshots in a notebook into a file, by default the one beside it
warm NOTEBOOK [--portable BASELINE]
    run a notebook without a person (`pip install '.[run]'`), and write the snapshot beside it
run NOTEBOOK [--require-hit]
    run a notebook, and show hits, compiled graphs and the warnings of its kernel
kernel [install | status | start | stop | uninstall] [--user]
    install, show, start, stop or uninstall the Jupyter kernel that [starts with torch
    imported](kernels.md); `status` also says why the last one was not forked
bench [NOTEBOOK | MODULE:FUNCTION] …
    run it in fresh kernels, cold, with torch's caches and restored, and print the seconds of each cell
    [side by side](benchmark.md)
doctor
    check everything that kernels started from there need; exit status 1 if there is a problem
status
    show the size of the local store, and its graphs by notebook
stats
    show [hits and saved seconds](stats.md) of all remembered kernels of all notebooks
config
    show nbcache's [settings](settings.md), and where each value comes from
clear [--yes]
    remove the stored graphs of all notebooks, after asking
trust [list | add | remove | show] [SIGNER] [--name NAME]
    show and choose the signers whose snapshots may run here
""")

_BESIDE = "default: the file beside the notebook, NOTEBOOK.nbcache"
_HELP = {
    "SOURCE": "a snapshot file, a notebook with one in it or beside it, a URL, or URL#NAME",
    "URL": "redis://host/0, s3://bucket/x, a folder, or another URL of a store",
    "DEST": f"a file, or URL#NAME; {_BESIDE}",
    "SNAPSHOT": _BESIDE,
    "OUTPUT": "the file to write",
    "SIGNER": "a fingerprint; for add, also a snapshot; for the others, also a name",
    "--all": "take all stored graphs, also those that its present cells no longer use",
    "--all-signers": "also remove the versions of others",
    "--assume-same-cpu": "also take its CPU graphs: its CPU and compiler equal those here",
    "--from": "default: all stored graphs",
    "--grace": "time after which an artifact that no snapshot uses is removed; default: an hour",
    "--name": "your name for the signer",
    "--portable": "compile CPU code for all CPUs of this kind, instead of for this one",
    "--require-hit": "exit with 1 if a graph did not hit",
    "--traces": "run the notebook SOURCE, and compare its stored traces with new ones",
    "--unused-days": "remove live artifacts that no kernel has used for so many days; default: 30",
    "--user": "install it for you alone, also if this Python is in a virtual environment",
    "--yes": "do not ask",
}
_PATHS = ("NOTEBOOK", "FILE", "OUTPUT", "SNAPSHOT")
_NUMBERS = ("SECONDS", "DAYS")
_NAMES = {"-o": "output", "--from": "source", "URL#NAME": "source"}
"""Word in a usage line → attribute of the parsed arguments, if they differ."""
_OPTION = re.compile(r"(\[)?(--?[\w-]+)(?: ([A-Z]+))?")
_VALUE = re.compile(r"(\[)?([A-Z][A-Z#]*)( …)?")
_CHOICE = re.compile(r"\[([a-z]+(?: \| [a-z]+)+)\]")


def _of(verb: str) -> list[str]:
    """Return the forms of a magic's verb, without the verb."""
    return [form.partition(" ")[2] for form in MAGICS if form.partition(" ")[0] == verb]


def usage(verb: str) -> str:
    return "; ".join(f"%nbcache {verb} {form}".rstrip() for form in _of(verb))


def words_of(verb: str) -> list[str]:
    """Return the options and the words that can follow a magic's verb."""
    words = (word for form in _of(verb) for word in re.findall(r"--[\w-]+|\b[a-z]+\b", form))
    return list(dict.fromkeys(words))


def magic_arguments(verb: str, words: Sequence[str]) -> SimpleNamespace:
    """Parse a verb's options into attributes, and other words into `words`; ValueError if no form fits."""
    options = {option: value for form in _of(verb) for _, option, value in _OPTION.findall(form)}
    arguments = SimpleNamespace(
        words=[], **{name[2:]: "" if value else False for name, value in options.items()}
    )
    queue = list(words)
    while queue:
        word = queue.pop(0)
        if not word.startswith("-"):
            arguments.words.append(word)
        elif word not in options:
            raise ValueError(f"`{word}` is not understood")
        elif options[word] and not queue:
            raise ValueError(f"`{word}` needs a value")
        else:
            setattr(arguments, word[2:], queue.pop(0) if options[word] else True)
    choices = [choice for form in _of(verb) for choice in _OPTION.sub("", form).split("|")]
    most = max(len(re.findall(r"[\w#=]+", choice)) for choice in choices)
    if len(arguments.words) > most and not any("…" in choice for choice in choices):
        raise ValueError(f"`{arguments.words[most]}` is not understood")
    return arguments


def plain_text(text: str) -> str:
    """Return the text of a form without Markdown's links."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)


def magic_help() -> str:
    lines = ["Show and steer the cache of compiled graphs.", ""]
    for form, text in MAGICS.items():
        lines += [f"%nbcache {form}", textwrap.indent(textwrap.fill(plain_text(text), 100), "    ")]
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser, form: str) -> None:
    """Give a parser the arguments of a form."""
    arguments = form.partition(" ")[2]
    if choice := _CHOICE.match(arguments):
        actions = choice[1].split(" | ")
        first = "status" if "status" in actions else actions[0]
        parser.add_argument("action", choices=actions, nargs="?", default=first)
        arguments = arguments[choice.end() :]
    for bracket, option, value in _OPTION.findall(arguments):
        name = _NAMES.get(option, option.lstrip("-").replace("-", "_"))
        names = [option, "--output"] if option == "-o" else [option]
        settings: dict[str, Any] = {"dest": name, "help": _HELP.get(option) or _HELP.get(value)}
        if not value:
            parser.add_argument(*names, action="store_true", **settings)
            continue
        if value == "BASELINE":
            settings["choices"] = list(BASELINES)
        settings |= {"required": not bracket, "default": "" if option == "--name" else None}
        parser.add_argument(*names, metavar=value, type=_type(value), **settings)
    for bracket, value, several in _VALUE.findall(_OPTION.sub("", arguments)):
        name = _NAMES.get(value, value.lower() + ("s" if several else ""))
        count = "+" if several else "?" if bracket else None
        parser.add_argument(name, metavar=value, nargs=count, type=_type(value), help=_HELP.get(value))


def _type(value: str) -> Any:
    return Path if value in _PATHS else _number if value in _NUMBERS else str


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number, 0 or more")
    return number
