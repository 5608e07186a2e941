"""Programs of the tenth attack, by somebody who read what torch 2.15 does that 2.13 did not."""

from __future__ import annotations

from soundness.subjects import Subject, edit, subject

__all__ = ["TENTH"]


def held_by(holder: str) -> Subject:
    """Return a program that asks whether a protocol fits a module, and its edit: it fits no more."""
    return subject(
        f"""\
        import typing
        @typing.runtime_checkable
        class Holds(typing.Protocol):
            kayy: int
        part = types.ModuleType("part")
        sys.modules["part"] = part
        {holder}.kayy = 1
        held = {holder}
        def f(x): return x * 2 if isinstance(held, Holds) else x * 3
        results = infer(f, X)
        """,
        [edit(".kayy = 1", ".jayy = 1")],
    )


def coded(text: str) -> Subject:
    """Return a program in which Python codes a text by an alias of a codec in C, and its edits."""
    return subject(
        f"""\
        import codecs
        def found(name):
            if name == "nbcache_codec10": return codecs.lookup(BASE)
        BASE = "utf-8"
        codecs.register(found)
        "a".encode("nbcache_codec10")
        def f(x): return x * len({text})
        results = infer(f, X)
        """,
        [edit('BASE = "utf-8"', 'BASE = "latin-1"'), edit('BASE = "utf-8"', 'BASE = "utf-16"')],
    )


TENTH = {
    **{f"a protocol of {holder}": held_by(holder) for holder in ("part", "math", "torch.nn.functional")},
    "a text of bytes": coded('str(b"\\xc3\\xa4bc", "nbcache_codec10")'),
    "a text of bytes by name": coded('str(b"\\xc3\\xa4bc", encoding="nbcache_codec10")'),
    "bytes of a text": coded('bytes("äb", "nbcache_codec10")'),
    "an array of bytes": coded('bytearray(b"\\xc3\\xa4bc").decode("nbcache_codec10")'),
}
