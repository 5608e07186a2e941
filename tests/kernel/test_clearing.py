"""What of the local store is one notebook's alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from nbcache.core.key import components
from nbcache.core.model import Artifact, Direction, Environment, GraphSummary, Manifest, Outcome
from nbcache.storage.backends.base import Store
from nbcache.storage.backends.directory import DirectoryStore
from nbcache.storage.backends.memory import MemoryStore
from nbcache.storage.manifests import clearing
from nbcache.storage.store import ArtifactStore

HERE = Environment(components({"torch.version": "2.13.0", "device": "cpu"}))
EARLIER = Environment(components({"torch.version": "2.11.0", "device": "cpu"}))


@pytest.fixture(params=["directory", "memory"])
def artifacts(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactStore:
    store: Store = DirectoryStore(tmp_path) if request.param == "directory" else MemoryStore()
    return ArtifactStore(store)


def keep(artifacts: ArtifactStore, notebook: str, *keys: str, environment: Environment = HERE) -> None:
    """Store artifacts, a graph each, with a manifest of a notebook."""
    refs = [artifacts.put(environment.digest, Artifact("inductor", key, key.encode())) for key in keys]
    graphs = [GraphSummary("", key, Direction.INFERENCE, Outcome.MISS, key, 1.0) for key in keys]
    artifacts.save_manifest(Manifest(environment, notebook, tuple(refs), tuple(graphs)))


def found(artifacts: ArtifactStore, *keys: str, type: str = "inductor") -> list[bool]:
    return [bool(artifacts.find(HERE.digest, type, key)) for key in keys]


def test_what_only_this_notebook_uses_goes_and_the_rest_stays(artifacts: ArtifactStore) -> None:
    keep(artifacts, "/a.ipynb", "mine", "both")
    keep(artifacts, "/b.ipynb", "theirs", "both")
    what = clearing(artifacts.manifests(), "/a.ipynb")
    assert (what.graphs, what.artifacts, what.kept) == (2, 1, 1)

    assert artifacts.drop(what.manifests, what.refs) == 1
    assert found(artifacts, "mine", "both", "theirs") == [False, True, True]
    assert artifacts.load_manifest(HERE, "/a.ipynb") is None
    assert clearing(artifacts.manifests(), "/a.ipynb").manifests == ()


def test_it_goes_in_every_environment(artifacts: ArtifactStore) -> None:
    keep(artifacts, "/a.ipynb", "now")
    keep(artifacts, "/a.ipynb", "before", environment=EARLIER)
    what = clearing(artifacts.manifests(), "/a.ipynb")
    artifacts.drop(what.manifests, what.refs)

    assert not list(artifacts.store.keys())


def test_a_content_that_something_else_refers_to_stays(artifacts: ArtifactStore) -> None:
    """As what another kernel has just stored, whose manifest is not written yet."""
    keep(artifacts, "/a.ipynb", "content")
    artifacts.put(HERE.digest, Artifact("inductor", "another key", b"content"))
    what = clearing(artifacts.manifests(), "/a.ipynb")
    assert artifacts.drop(what.manifests, what.refs) == 0

    assert found(artifacts, "content", "another key") == [False, True]


def test_earlier_states_of_a_profile_go_as_well(artifacts: ArtifactStore) -> None:
    for content in (b"earlier", b"later"):
        ref = artifacts.put(HERE.digest, Artifact("pgo", "profile", content))
    artifacts.save_manifest(Manifest(HERE, "/a.ipynb", (ref,)))
    what = clearing(artifacts.manifests(), "/a.ipynb")

    assert artifacts.drop(what.manifests, what.refs) == 2
    assert not list(artifacts.store.keys())


def test_a_profile_that_two_notebooks_share_stays_in_either_state(artifacts: ArtifactStore) -> None:
    for notebook, content in (("/b.ipynb", b"earlier"), ("/a.ipynb", b"later")):
        ref = artifacts.put(HERE.digest, Artifact("pgo", "profile", content))
        artifacts.save_manifest(Manifest(HERE, notebook, (ref,)))
    what = clearing(artifacts.manifests(), "/a.ipynb")
    artifacts.drop(what.manifests, what.refs)

    assert found(artifacts, "profile", type="pgo") == [True]
