"""`nbcache export-mega`, `import-mega`: torch's own portable caches."""

from __future__ import annotations

from pathlib import Path

from nbcache.artifacts.encoding import unpack
from nbcache.artifacts.mega_cache import decode_bundle, encode_bundle, holds_cpu_code, is_held
from nbcache.artifacts.provenance import Judge
from nbcache.artifacts.store import ArtifactStore
from nbcache.artifacts.types import BUNDLED
from nbcache.core.errors import EnvironmentMismatch, NbcacheError, SnapshotError, TrustError
from nbcache.core.files import read, update
from nbcache.core.model import Artifact, Manifest
from nbcache.core.settings import Settings
from nbcache.core.text import counted, size
from nbcache.core.trust import Keyring, Policy
from nbcache.kernel.snapshots import usable
from nbcache.snapshots.file import MAX_SNAPSHOT_BYTES
from nbcache.stores.directory import DirectoryStore
from nbcache.ui.terminal.shown import Shown, agree, needed_environment, received_from, usable_artifacts

__all__ = ["export_mega", "import_mega"]


def export_mega(path: Path, source: str | None, settings: Settings) -> Shown:
    """Write torch's bundle of trusted snapshots, or of all that is stored here for this environment."""
    here = needed_environment("a bundle")
    artifacts = []
    if source is None:
        stored = usable_artifacts(DirectoryStore(settings.dir), settings)
        artifacts = [*filter(None, map(stored.get, stored.everything(here).artifacts))]
    else:
        judge = Judge(lambda: Keyring(settings.trust_dir), lambda: Policy.STRICT)
        problems: list[NbcacheError] = []
        for received in received_from(source, settings):
            try:
                packed = received.unlock(Policy.STRICT)
                manifest, _ = usable(received, here, judge)
            except EnvironmentMismatch:
                continue
            except TrustError as error:
                problems.append(error)
                continue
            for ref in manifest.artifacts:
                content = unpack(packed[ref.digest], size=ref.size, digest=ref.digest)
                artifacts.append(Artifact(ref.type, ref.key, content))
        if problems and not artifacts:
            raise problems[0]
    held = [artifact for artifact in artifacts if is_held(artifact)]
    if not held:
        raise SnapshotError(
            "there is nothing for a bundle: no graph there fits this machine",
            where=source or str(settings.dir),
        )
    data = encode_bundle(held)
    update(path, lambda before: data, max_bytes=MAX_SNAPSHOT_BYTES)
    return Shown(
        [f"{path}: {counted(len(held), 'artifact')}, {size(len(data))}"],
        {"path": str(path), "artifacts": len(held), "bytes": len(data)},
    )


def import_mega(path: Path, same_cpu: bool, sure: bool, settings: Settings) -> Shown:
    """Store what a bundle of torch's holds, for this environment; its CPU graphs with `same_cpu` only."""
    here = needed_environment("a bundle")
    try:
        held = decode_bundle(read(path, max_bytes=MAX_SNAPSHOT_BYTES))
    except NbcacheError as error:
        error.where = str(path)
        raise
    sound = [each for each in held if is_held(each)]
    taken = [each for each in sound if same_cpu or not holds_cpu_code(each)]
    if taken and not sure:
        agree(f"{path} is not signed: what it holds runs as you, with all your rights. Store it? [y/N] ")
    stored = ArtifactStore(DirectoryStore(settings.dir))
    refs = []
    for artifact in taken:
        refs.append(stored.put(here.digest, artifact))
        if artifact.type == "inductor" and holds_cpu_code(artifact):
            stored.put(here.digest, Artifact(BUNDLED, artifact.key, artifact.digest.encode()))
    if refs:
        stored.save_manifest(Manifest(here, "", tuple(refs)))
    lines = [f"{path}: {counted(len(taken), 'artifact')} stored for this machine"]
    if left := len(sound) - len(taken):
        lines.append(
            f"{counted(left, 'artifact')} left alone: CPU code, and a bundle does not tell for which CPU. "
            "If it was made on this one, or one just like it: --assume-same-cpu"
        )
    if refused := len(held) - len(sound):
        lines.append(
            f"{counted(refused, 'artifact')} refused: torch makes none of that type, or with such a key"
        )
    return Shown(lines, {"stored": len(taken), "left": left, "refused": refused}, ok=bool(taken))
