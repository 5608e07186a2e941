"""All commands, by subject: what the parser imports when it knows that one is to run."""

from __future__ import annotations

from nbcache.core.settings import Settings
from nbcache.ui.display.reports import render_checks
from nbcache.ui.display.rows import CheckState
from nbcache.ui.doctor import in_terminal
from nbcache.ui.terminal import kernels, mega_cache, notebooks, signers, snapshots, stores
from nbcache.ui.terminal.shown import Shown

__all__ = ["doctor", "kernels", "mega_cache", "notebooks", "signers", "snapshots", "stores"]


def doctor(settings: Settings) -> Shown:
    """Check what nbcache needs of this machine; a problem is a failure."""
    checks = in_terminal(settings)
    rendered = render_checks(checks)
    sound = all(check.state is not CheckState.PROBLEM for check in checks)
    return Shown(rendered.text.splitlines(), rendered.data, ok=sound)
