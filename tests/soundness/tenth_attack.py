"""Programs of the tenth attack, by somebody who read what torch 2.15 does that 2.13 did not."""

from __future__ import annotations

from soundness.subjects import Subject, edit, subject

__all__ = ["TENTH"]


def held_by(holder: str, member: str) -> Subject:
    """Return a program that asks whether a protocol fits a module, and edits after which it does not."""
    return subject(
        f"""\
        import typing
        @typing.runtime_checkable
        class Holds(typing.Protocol):
            {member}
        part = types.ModuleType("part")
        sys.modules["part"] = part
        {holder}.kayy = 1
        held = {holder}
        def f(x): return x * 2 if isinstance(held, Holds) else x * 3
        results = infer(f, X)
        """,
        [edit(".kayy = 1", ".jayy = 1"), edit(".kayy = 1", ".kayy = None"), edit(member, "jayy: int")],
    )


def coded(text: str, base: str) -> Subject:
    """Return a program in which Python codes a text by an alias of a codec in C, and its edits."""
    bases = ("utf-8", "latin-1", "utf-16", "ascii")
    return subject(
        f"""\
        import codecs
        def found(name):
            if name == "nbcache_codec10": return codecs.lookup(BASE)
        BASE = "{base}"
        codecs.register(found)
        "a".encode("nbcache_codec10")
        def f(x):
            try: n = len({text})
            except (LookupError, UnicodeError): n = 9
            return x * n
        results = infer(f, X)
        """,
        [edit(f'BASE = "{base}"', f'BASE = "{other}"') for other in bases if other != base],
    )


TEXTS = {
    "a text of bytes": 'str(b"\\xc3\\xa4bc", "nbcache_codec10")',
    "a text of bytes by name": 'str(b"\\xc3\\xa4bc", encoding="nbcache_codec10")',
    "bytes of a text": 'bytes("äb", "nbcache_codec10")',
    "an array of bytes": 'bytearray(b"\\xc3\\xa4bc").decode("nbcache_codec10")',
    "an array of a text": 'bytearray("äb", "nbcache_codec10")',
}
TENTH = {
    **{f"a protocol of {holder}": held_by(holder, "kayy: int") for holder in ("part", "torch.nn.functional")},
    **{f"a method of {holder}": held_by(holder, "def kayy(self): ...") for holder in ("part", "math")},
    **{f"{what} in {base}": coded(text, base) for what, text in TEXTS.items() for base in ("utf-8", "ascii")},
}
