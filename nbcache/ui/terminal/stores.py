"""Commands on stores: ls, rm, gc."""

from __future__ import annotations

import time
from pathlib import Path

from nbcache.core.errors import ConfigError
from nbcache.core.settings import Settings
from nbcache.core.text import counted, one_line
from nbcache.core.trust import Keyring
from nbcache.shared.gc import MAX_AGE_SECONDS, remove_unused
from nbcache.snapshots.named import GRACE_SECONDS, opened
from nbcache.snapshots.sources import destination
from nbcache.ui.display.snapshots import version_json, version_lines
from nbcache.ui.terminal.shown import Shown, agree, judge_of

__all__ = ["gc", "ls", "rm"]


def ls(url: str, settings: Settings) -> Shown:
    """Show the named snapshots in a store; nothing of them is used."""
    with opened(url, Keyring(settings.trust_dir)) as snapshots:
        versions = snapshots.versions()
        data = [version_json(each) for each in versions]
        if not versions:
            return Shown([f"{snapshots.name}: no snapshots"], data)
    return Shown(version_lines(versions, judge_of(settings)), data)


def rm(source: str, settings: Settings, *, all_signers: bool = False, sure: bool = False) -> Shown:
    """Remove the user's versions of a named snapshot from its store; its artifacts stay until `gc`.

    With `all_signers` those of others, too, once the user agrees or where `sure`.
    """
    target = destination(source)
    if isinstance(target, Path):
        raise ConfigError(
            "only what has a name in a store is removed",
            where=source,
            next_step="write URL#NAME; a file is removed as any other",
        )
    with opened(target.url, Keyring(settings.trust_dir)) as snapshots:
        where = snapshots.where(target.name)
        if all_signers and not sure:
            agree(f"{one_line(where)}: remove the versions of all signers? [y/N] ", "nothing was removed")
        removed, others = snapshots.remove(target.name, all_signers=all_signers)
    line = f"{one_line(where)}: removed, {counted(removed, 'version')}; nbcache gc removes what only it named"
    if others:
        line += f"; {counted(others, 'version')} of others, or damaged, left (--all-signers removes all)"
    return Shown([line], {"source": where, "versions": removed, "others": others})


def gc(url: str, grace: float | None, unused_days: float | None, settings: Settings) -> Shown:
    """Remove what no snapshot names, `grace` seconds after it was marked, and what kernels share unused.

    The latter after `unused_days`, 30 by default.
    """
    max_age = MAX_AGE_SECONDS if unused_days is None else unused_days * 86400
    with opened(url, Keyring(settings.trust_dir)) as snapshots:
        done = snapshots.collect_garbage(GRACE_SECONDS if grace is None else grace)
        live = remove_unused(snapshots.store, max_age)
        name = snapshots.name
    due = None if done.due is None else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(done.due))
    lines = [f"{name}: removed {counted(done.removed, 'artifact')} that no snapshot named"]
    if done.problems:
        lines = [f"{name}: nothing was removed, since not every snapshot tells what it names"]
        for problem in done.problems:
            lines += problem.diagnostics()
    elif done.waiting:
        lines.append(
            f"{counted(done.waiting, 'more is', 'more are')} marked, since no snapshot names them; "
            f"`nbcache gc` removes the first from {due} on"
        )
    if live.problems:
        lines.append("of what kernels share live nothing was removed, since not all tell what they use")
        for problem in live.problems:
            lines += problem.diagnostics()
    else:
        unused = f"that no kernel has used for {max_age / 86400:g} days"
        lines.append(
            f"live: removed {counted(live.artifacts, 'artifact')} {unused}, and what "
            f"{counted(live.publishers, 'publisher')} had; {live.kept} kept"
        )
    data = {
        "removed": done.removed,
        "marked": done.waiting,
        "due": done.due,
        "live": {"removed": live.artifacts, "kept": live.kept, "publishers": live.publishers},
        "problems": [str(problem) for problem in (*done.problems, *live.problems)],
    }
    return Shown(lines, data, ok=not data["problems"])
