"""Keys: what changes a digest, what does not, and how a difference reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbcache.core.key import Component, Difference, components, diff, digest, sha256

COMPONENTS = {"torch": "2.13.0+cpu", "python": "3.11.7", "cpu": "avx2 fma"}


def test_the_digest_is_frozen() -> None:
    # Changing it loses everything that anyone has stored.
    preimage = b"nbcache key 1\n3:cpu8:avx2 fma6:python6:3.11.75:torch10:2.13.0+cpu"
    assert digest(components(COMPONENTS)) == sha256(preimage)


def test_sha256_is_that_of_the_content() -> None:
    assert sha256(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.parametrize("label", COMPONENTS)
def test_another_value_of_a_component_changes_the_digest(label: str) -> None:
    assert digest(components(COMPONENTS | {label: "other"})) != digest(components(COMPONENTS))


@pytest.mark.parametrize("label", COMPONENTS)
def test_a_missing_component_changes_the_digest(label: str) -> None:
    rest = {name: value for name, value in COMPONENTS.items() if name != label}
    assert digest(components(rest)) != digest(components(COMPONENTS))


def test_another_label_changes_the_digest() -> None:
    assert digest([Component("a", "x")]) != digest([Component("b", "x")])


def test_swapping_label_and_value_changes_the_digest() -> None:
    assert digest([Component("a", "b")]) != digest([Component("b", "a")])


def test_an_empty_component_changes_the_digest() -> None:
    assert digest([Component("", "")]) != digest([])


def test_the_order_of_a_mapping_does_not_change_the_digest() -> None:
    backwards = dict(reversed(COMPONENTS.items()))
    assert digest(components(backwards)) == digest(components(COMPONENTS))


def test_a_value_counts_as_its_text() -> None:
    assert digest(components({"threads": 2})) == digest(components({"threads": "2"}))


def test_text_cannot_move_between_label_and_value() -> None:
    assert digest([Component("ab", "c")]) != digest([Component("a", "bc")])
    assert digest([Component("a", "1:b")]) != digest([Component("a1:", "b")])


@given(st.lists(st.builds(Component, st.text(max_size=3), st.text(max_size=3)), max_size=3), st.data())
def test_no_two_sequences_share_a_digest(parts: list[Component], data: st.DataObject) -> None:
    other = data.draw(st.lists(st.builds(Component, st.text(max_size=3), st.text(max_size=3)), max_size=3))
    assert (digest(parts) == digest(other)) == (parts == other)


def test_equal_keys_do_not_differ() -> None:
    assert diff(components(COMPONENTS), components(COMPONENTS)) == []


def test_a_difference_says_what_was_and_what_is() -> None:
    old = components(COMPONENTS)
    new = components({"torch": "2.14.0", "python": "3.11.7", "threads": 2})
    assert diff(old, new) == [
        Difference("cpu", "avx2 fma", None),
        Difference("threads", None, "2"),
        Difference("torch", "2.13.0+cpu", "2.14.0"),
    ]
