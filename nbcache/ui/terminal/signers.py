"""`nbcache trust`: the signers that the user trusts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from nbcache.core.errors import ConfigError, SnapshotError
from nbcache.core.settings import Settings
from nbcache.core.text import NOTHING, aligned
from nbcache.core.trust import Keyring, Standing, TrustedSigner, is_fingerprint, spelled
from nbcache.ui.display.snapshots import COMPARE, signer_words
from nbcache.ui.terminal.shown import Shown, judge_of, received_from


def signers(settings: Settings) -> Shown:
    """Show the user's own key, which is made at the first time, and the trusted signers."""
    keyring = Keyring(settings.trust_dir)
    own, trusted = keyring.fingerprint(), keyring.trusted()
    rows = [(spelled(own), "you: what to tell others")]
    rows += [(spelled(signer.fingerprint), f"trusted: {signer.name or NOTHING}") for signer in trusted]
    data = {"own": own, "trusted": [_signer_json(signer) for signer in trusted]}
    return Shown([*aligned(rows, right=()), f"policy: {settings.trust.value}"], data)


def trust(action: str, signer: str | None, name: str, settings: Settings) -> Shown:
    """Show, add or remove signers; `signer` is a fingerprint, or to add the source of a snapshot."""
    if action == "list":
        return signers(settings)
    if not signer:
        raise ConfigError(
            f"nbcache trust {action} needs a signer",
            next_step="give a fingerprint, as `nbcache trust list` and `nbcache inspect FILE` show them",
        )
    keyring = Keyring(settings.trust_dir)
    if action == "add":
        entry = keyring.add(_signer_of(signer, settings) if _is_source(signer) else signer, name)
        line = f"trusted from now on: {spelled(entry.fingerprint)}"
    elif action == "remove":
        entry = keyring.remove(signer)
        line = (
            f"not trusted any more: {spelled(entry.fingerprint)}; kernels that start from now on use nothing "
            "that they compiled, whoever passed it on. Restart those that run"
        )
    else:
        entry = keyring.find(signer)
        since = time.strftime("%Y-%m-%d", time.gmtime(entry.added))
        line = f"{spelled(entry.fingerprint)}  trusted since {since}"
    return Shown([line + (f" ({entry.name})" if entry.name else "")], _signer_json(entry))


def _is_source(text: str) -> bool:
    """Return whether this is a place; a possible fingerprint is none, even if a file has its name."""
    return not is_fingerprint(text) and ("://" in text or "#" in text or Path(text).is_file())


def _signer_of(source: str, settings: Settings) -> str:
    """Return the fingerprint of who else signed what is at `source`; SnapshotError if that is not one."""
    judge = judge_of(settings)
    versions = received_from(source, settings)
    signed = {version.signer: version for version in versions if version.standing is not None}
    others = [signer for signer, received in signed.items() if received.standing is not Standing.OWN]
    if len(others) == 1:
        return others[0]
    if not others:
        raise SnapshotError(
            "nobody else signed this", where=source, next_step="nbcache inspect says whose it is"
        )
    words = (
        signer_words(signer, judge, received.snapshot.user, received.snapshot.host)
        for signer, received in sorted(signed.items(), key=lambda pair: pair[1].standing is Standing.UNKNOWN)
    )
    raise SnapshotError(
        f"several have signed what is there: {'; '.join(words)}",
        where=source,
        next_step=f"name one by the fingerprint. {COMPARE}",
    )


def _signer_json(signer: TrustedSigner) -> dict[str, Any]:
    return {
        "fingerprint": signer.fingerprint,
        "name": signer.name,
        "added": signer.added,
        "standing": Standing.TRUSTED.name.lower(),
    }
