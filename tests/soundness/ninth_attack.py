"""Programs of the ninth attack, by somebody who read which code Dynamo has Python run."""

from __future__ import annotations

from soundness.subjects import Subject, edit, subject

__all__ = ["NINTH"]


def text_of_module(made: str) -> Subject:
    """Return a program that makes a text of a module, and its edit: the module is of another file."""
    return subject(
        f"""\
        part = types.ModuleType("part")
        part.__file__, part.K = "/a/part.py", 2
        sys.modules["part"] = part
        def f(x): return x * len({made}) * part.K
        results = infer(f, X)
        """,
        [edit("/a/part.py", "/another/part.py")],
    )


def asked_natively(given: str, asked: str) -> Subject:
    """Return a program in which Python reads a property that `operator.attrgetter` computes."""
    return subject(
        f"""\
        import operator, typing
        class A: pass
        class B: pass
        @typing.runtime_checkable
        class Holds(typing.Protocol):
            k: int
        class C: {given}
        c = C()
        c.cfg = types.SimpleNamespace(i=A(), k=2)
        def f(x): return x * 2 if {asked} else x * 3
        results = infer(f, X)
        """,
        [edit("(i=A(), k=2)", "(i=B())")],
    )


NINTH: dict[str, Subject] = {
    "text of a module": text_of_module("str(part)"),
    "formatted module": text_of_module("f'{part}'"),
    "module formatted by a text": text_of_module("'{}'.format(part)"),
    "module formatted by an operator": text_of_module("'%s' % part"),
    "representation of a module": text_of_module("repr(part)"),
    "text of a list of modules": text_of_module("str([part])"),
    "texts of mapped modules": text_of_module("','.join(map(str, [part]))"),
    "class by an attrgetter": asked_natively(
        '__class__ = property(operator.attrgetter("cfg.i.__class__"))', "isinstance(c, A)"
    ),
    "protocol by an attrgetter": asked_natively(
        'k = property(operator.attrgetter("cfg.k"))', "isinstance(c, Holds)"
    ),
    "attribute by an attrgetter": asked_natively(
        'k = property(operator.attrgetter("cfg.k"))', 'hasattr(c, "k")'
    ),
    "protocol by a wrapper of torch's": subject(
        """\
        import typing
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
        @typing.runtime_checkable
        class Holds(typing.Protocol):
            k: int
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.k = 2
            def forward(self, x): return x
        net = checkpoint_wrapper(Net())
        def f(x): return x * 2 if isinstance(net, Holds) else x * 3
        results = infer(f, X)
        """,
        [edit("self.k = 2", "self.j = 2")],
    ),
}
