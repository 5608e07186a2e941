"""What the plan of a notebook rests on: its file, the local store, snapshots, the shared store. No torch."""

from __future__ import annotations

from dataclasses import replace

import nbformat
import pytest

from nbcache.core.key import components
from nbcache.core.model import Environment
from nbcache.core.reports import Cell
from nbcache.core.settings import Settings
from nbcache.sharing.live.level import SharedLevel
from nbcache.sharing.live.signing import Signer
from nbcache.sharing.trust import Keyring
from nbcache.storage.backends.open import open_shared
from nbcache.ui.ipython.kernel_verbs import Planner
from support.live_kernels import HERE
from support.people import Person

DEFINE, CALL, MORE = "def f(x): ...", "f(x)", "f(x) + g(x)"
ELSEWHERE = Environment(components({**HERE.values, "torch.version": "2.12.0"}))


@pytest.fixture
def ada(tmp_path):
    return Person(tmp_path / "ada")


@pytest.fixture
def bob(tmp_path):
    return Person(tmp_path / "bob")


def save(person, *sources):
    """Save the notebook with these code cells."""
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), person.notebook)


def run(session, bridge, source, *keys, number=1):
    """Run a cell that compiles the graphs `keys`."""
    session.begin_cell(Cell.of(source, number))
    for key in keys:
        bridge.compile(key)
    session.end_cell()


def share(ada, bob):
    """Put the snapshot of Ada's notebook beside that of Bob, which has the same cell."""
    save(ada, CALL)
    session, bridge, sharing = ada.session()
    run(session, bridge, CALL, "one")
    sharing.write(bob.snapshot, sharing.origin("model.ipynb"))
    session.close()
    save(bob, CALL)


def planned(person, session, sharing, foreseen=lambda: None):
    """Return the plan of the person's notebook, as data and as text."""
    shown = Planner(session, foreseen, sharing).plan()
    assert shown.data is not None
    return dict(shown.data), shown.text


def graphs_of(plan):
    rows = [graph for cell in plan["cells"] for graph in cell["graphs"]]
    return [(graph["key"], graph["expected"], graph["source"]) for graph in rows]


def test_what_this_kernel_has_compiled_the_next_one_is_to_hit(ada):
    save(ada, DEFINE, CALL, MORE)
    session, bridge, sharing = ada.session()
    run(session, bridge, CALL, "one")
    run(session, bridge, MORE, "one", "two", number=2)
    plan, text = planned(ada, session, sharing)

    assert graphs_of(plan) == [
        ("one", "hit", "memory"),
        ("one", "hit", "memory"),
        ("two", "hit", "memory"),
    ]
    assert (plan["hits"], plan["others"], plan["edited"], plan["problem"]) == (3, 1, 0, None)
    assert "2 of 2 graphs hit" in text and "by the file as it was saved" in text
    session.close()


def test_a_cell_that_was_edited_and_saved_is_told_by_the_next_kernel(ada):
    save(ada, DEFINE, CALL)
    session, bridge, _ = ada.session()
    run(session, bridge, CALL, "one")
    session.close()
    save(ada, DEFINE, CALL + "  # again")

    session, _, sharing = ada.session()
    plan, text = planned(ada, session, sharing)
    assert plan["edited"] == 1 and graphs_of(plan) == [("one", "edited", "memory")]
    assert "1 cell was edited since" in text and "edited since: f" in text
    session.close()


def test_a_file_that_was_not_saved_since_is_told_as_such(ada):
    save(ada, CALL)
    session, _, sharing = ada.session()
    session.begin_cell(Cell.of("%nbcache plan", 1))
    plan, _ = planned(ada, session, sharing)
    assert "without this cell: save the notebook, and ask again" in plan["notes"][0]

    save(ada, CALL, "%nbcache plan")
    plan, _ = planned(ada, session, sharing)
    assert plan["notes"][0].startswith("by the file as it was saved")
    session.close()


def test_what_was_removed_is_compiled_again(ada):
    save(ada, CALL)
    session, bridge, sharing = ada.session()
    run(session, bridge, CALL, "one", "two")
    session.flush(10)
    manifest = session.cache.manifest()
    assert manifest is not None
    ada.store.delete(f"artifact/{manifest.artifacts[0].digest}")
    plan, _ = planned(ada, session, sharing)
    assert sorted(expected for _, expected, _ in graphs_of(plan)) == ["gone", "hit"]
    session.close()


def test_what_another_environment_compiled_does_not_fit_and_what_differs_is_named(ada):
    save(ada, CALL)
    ada.environment = ELSEWHERE
    session, bridge, _ = ada.session()
    run(session, bridge, CALL, "one")
    session.close()

    ada.environment = HERE
    session, _, sharing = ada.session()
    plan, text = planned(ada, session, sharing)
    assert graphs_of(plan) == [("one", "elsewhere", None)]
    (unfit,) = plan["unfit"]
    assert (unfit["name"], unfit["graphs"]) == ("memory", 1)
    assert unfit["differences"] == [{"label": "torch.version", "there": "2.12.0", "here": "2.13.0"}]
    assert "not used: 1 graph of memory" in text and "torch.version  2.12.0  2.13.0" in text
    session.close()


def test_what_a_snapshot_brings_is_counted_once_its_signer_is_trusted(ada, bob):
    share(ada, bob)
    session, _, sharing = bob.session()
    plan, _ = planned(bob, session, sharing)
    assert (plan["graphs"], plan["unfit"][0]["name"]) == (0, "model.nbcache")
    assert "%nbcache trust" in " ".join(plan["unfit"][0]["why"])
    session.close()

    Keyring(bob.keys).add(Keyring(ada.keys).own() or "")
    session, _, sharing = bob.session()
    plan, _ = planned(bob, session, sharing)
    assert graphs_of(plan) == [("one", "hit", "memory")]  # where it has been stored meanwhile
    assert plan["unfit"] == []
    session.close()


def test_a_snapshot_of_another_torch_says_so_before_torch_is_imported(ada, bob):
    ada.environment = ELSEWHERE
    share(ada, bob)
    Keyring(bob.keys).add(Keyring(ada.keys).own() or "")

    session, _, sharing = bob.session()
    session.cache.environment = None
    foreseen = Environment(components({"torch.version": "2.13.0"}))
    plan, _ = planned(bob, session, sharing, lambda: foreseen)
    assert [each["differences"][0]["there"] for each in plan["unfit"]] == ["2.12.0"]
    plan, _ = planned(bob, session, sharing, lambda: Environment(components({"torch.version": "2.12.0"})))
    assert graphs_of(plan) == [("one", "hit", "model.nbcache")]
    session.close()


def test_what_others_share_live_is_counted(ada, bob, tmp_path):
    ada.make("other")  # which makes her key
    Keyring(bob.keys).add(Keyring(ada.keys).own() or "")

    def joined(person):
        session, bridge, sharing = person.session()
        url = replace(Settings(), shared_url=str(tmp_path / "team"))
        signer = Signer(lambda: Keyring(person.keys), lambda: session.settings.trust, "ada", "engine")
        store = open_shared(url)
        session.configure(replace(session.settings, prefetch=False))  # so that it is there alone
        session.join(SharedLevel(store, signer, wait_seconds=10, say=session.notice))
        return session, bridge, sharing

    session, bridge, _ = joined(ada)
    run(session, bridge, CALL, "one")
    assert session.flush(10)
    session.close(10)
    save(bob, CALL)

    session, _, sharing = joined(bob)
    plan, _ = planned(bob, session, sharing)
    assert graphs_of(plan) == [("one", "hit", str(tmp_path / "team"))]
    session.close(10)


def test_what_may_not_be_used_is_told_with_its_reason(ada, bob):
    bob.snapshot.write_bytes(ada.make("one", "two"))
    fingerprint = Keyring(ada.keys).own() or ""
    Keyring(bob.keys).add(fingerprint)
    session, bridge, sharing = bob.session()
    run(session, bridge, CALL, "one")
    session.close()  # with what the snapshot brought stored
    Keyring(bob.keys).remove(fingerprint)

    session, bridge, sharing = bob.session()
    run(session, bridge, CALL, "one")
    session.flush(10)
    stats = Planner(session, lambda: None, sharing).stats().data
    assert stats is not None
    assert stats["session"]["missed"] == 1
    refused = {each["what"]: each["why"] for each in stats["refused"]}
    assert refused["model.nbcache"].endswith("is not trusted (%nbcache trust)")
    assert refused["2 artifacts"]
    assert (stats["notebook"]["hits"], stats["notebook"]["missed"]) == (1, 1)
    session.close()
