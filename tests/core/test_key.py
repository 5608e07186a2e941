"""Keys: what changes a digest, what does not, and how a difference reads."""

from hypothesis import given
from hypothesis import strategies as st

from nbcache.core.key import Component, Difference, components, diff, digest, sha256

COMPONENTS = {"torch": "2.13.0+cpu", "python": "3.11.7", "cpu": "avx2 fma"}


def test_the_digest_is_frozen() -> None:
    # Changing it loses everything that anyone has stored.
    preimage = b"nbcache key 1\n3:cpu8:avx2 fma6:python6:3.11.75:torch10:2.13.0+cpu"
    assert digest(components(COMPONENTS)) == sha256(preimage)


def test_the_order_of_a_mapping_does_not_change_the_digest() -> None:
    backwards = dict(reversed(COMPONENTS.items()))
    assert digest(components(backwards)) == digest(components(COMPONENTS))


@given(st.lists(st.builds(Component, st.text(max_size=3), st.text(max_size=3)), max_size=3), st.data())
def test_no_two_sequences_share_a_digest(parts: list[Component], data: st.DataObject) -> None:
    other = data.draw(st.lists(st.builds(Component, st.text(max_size=3), st.text(max_size=3)), max_size=3))
    assert (digest(parts) == digest(other)) == (parts == other)


def test_a_difference_says_what_was_and_what_is() -> None:
    old = components(COMPONENTS)
    new = components({"torch": "2.14.0", "python": "3.11.7", "threads": 2})
    assert diff(old, new) == [
        Difference("cpu", "avx2 fma", None),
        Difference("threads", None, "2"),
        Difference("torch", "2.13.0+cpu", "2.14.0"),
    ]
