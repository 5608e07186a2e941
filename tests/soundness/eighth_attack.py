"""Programs of the eighth attack, by somebody who knew what the seven before had tried."""

from __future__ import annotations

from soundness.subjects import Subject, edit, subject

__all__ = ["EIGHTH"]

EIGHTH: dict[str, Subject] = {
    "text of a nested configuration": subject(
        """\
        N = types.SimpleNamespace
        cfg = N(model=N(act="relu"))
        def f(x): return x.relu() if "relu" in str(cfg) else x.tanh()
        results = infer(f, X)
        """,
        [edit('act="relu"', 'act="tanh"')],
    ),
    "text of a nested dataclass as a key": subject(
        """\
        import dataclasses
        @dataclasses.dataclass
        class Inner: p: float = 2.0
        @dataclasses.dataclass
        class Outer: inner: Inner
        cfg = Outer(Inner())
        TABLE = {"Outer(inner=Inner(p=2.0))": 2.0}
        def f(x): return x * TABLE.get(str(cfg), 9.0)
        results = infer(f, X)
        """,
        [edit("p: float = 2.0", "p: float = 3.0")],
    ),
    "text of an error's object": subject(
        """\
        N = types.SimpleNamespace
        cfg = N(model=N(k=2))
        def f(x):
            try: raise ValueError(cfg)
            except ValueError as e: return x * len(str(e))
        results = infer(f, X)
        """,
        [edit("k=2", "k=2222")],
    ),
    "texts of mapped objects": subject(
        """\
        N = types.SimpleNamespace
        parts = [N(k=N(v=2)), N(k=N(v=3))]
        def f(x): return x * len(",".join(map(str, parts)))
        results = infer(f, X)
        """,
        [edit("v=3", "v=3333")],
    ),
    "text of a module": subject(
        """\
        nn = torch.nn
        net = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)))
        def f(x): return x * 2 if "p=0.5" in str(net) else x * 3
        results = infer(f, X)
        """,
        [edit("Dropout(0.5)", "Dropout(0.25)")],
    ),
    "text of a distribution": subject(
        """\
        d = torch.distributions.Normal(0.0, 1.0)
        def f(x): return x * len(str(d))
        results = infer(f, X)
        """,
        [edit("Normal(0.0", "Normal(0.55")],
    ),
    "text of a tensor that is held": subject(
        """\
        import dataclasses
        @dataclasses.dataclass
        class C: t: torch.Tensor
        c = C(torch.tensor(2.0))
        def f(x): return x * 2 if "2." in str(c) else x * 3
        results = infer(f, X)
        """,
        [edit("tensor(2.0)", "tensor(5.0)")],
    ),
    "text of a member": subject(
        """\
        import enum
        N = types.SimpleNamespace
        class E(enum.Enum): A = N(k=N(v=2))
        def f(x): return x * len(repr(E.A))
        results = infer(f, X)
        """,
        [edit("v=2", "v=2222")],
    ),
    "formatted member": subject(
        """\
        import enum
        N = types.SimpleNamespace
        class E(enum.Enum): A = N(k=N(v=2))
        def f(x): return x * len("%r" % E.A) * len(f"{E.A!r}") * len(str([E.A])) * len("{!r}".format(E.A))
        results = infer(f, X)
        """,
        [edit("v=2", "v=2222")],
    ),
}
