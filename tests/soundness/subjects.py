"""Programs that depend on more than torch's keys hold, and edits of them.

Each program sets `results`, a function that takes a way to compile and returns tensors. A line `# %%` begins
another cell: what torch remembers of a function counts while nothing is edited in its cell.

An edit is a list of texts and what takes their place. After one of `changes` no graph of before may answer,
unless its answer is the same anyway; after one of `same` every graph must be hit.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent

Edit = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Subject:
    """A program, with the edits that change what its graphs do, and those that change nothing."""

    source: str
    changes: tuple[Edit, ...]
    same: tuple[Edit, ...] = ()
    alike: tuple[Edit, ...] = ()
    """More changes. Each is told as one of `changes` is, which stands for it but in `make test-all`."""


SET_UP = """\
import functools, math, sys, types
import torch
from torch import Tensor
torch.manual_seed(0)
X = torch.randn(4, 4)
W = torch.randn(4, 4)

def infer(f, *inputs):
    def results(compile):
        with torch.no_grad():
            found = compile(f)(*[each.clone() for each in inputs])
        return list(found) if isinstance(found, (tuple, list)) else [found]
    return results

def train(f, *inputs):
    def results(compile):
        leaves = [each.clone().requires_grad_() for each in inputs]
        found = compile(f)(*leaves)
        found.square().sum().backward()
        return [found.detach(), *(each.grad for each in leaves if each.grad is not None)]
    return results

"""


def edit(*texts: str) -> Edit:
    """Return the edit that puts every second text in the place of the one before it."""
    return tuple(zip(texts[::2], texts[1::2], strict=True))


def subject(
    source: str, changes: list[Edit], same: list[Edit] | None = None, alike: list[Edit] | None = None
) -> Subject:
    """Return a subject, its source indented as it stands here."""
    return Subject(SET_UP + dedent(source), tuple(changes), tuple(same or ()), tuple(alike or ()))


COLD = 'AGAINST = "cold"\n'
"""Makes a program one that does something else when it is compiled: only two compiles can be compared."""
COMPILED = 'MODE = "default"'
"""Has a program compiled in full, where "lite" does not do what it is about."""
PASSES = f"""\
{COMPILED}
{COLD}import torch._inductor.config as config
config.fallback_by_default = True
aten = torch.ops.aten

class Named(torch._inductor.custom_graph_pass.CustomGraphPass):
    def uuid(self):
        return "always the same"

"""
"""Begins programs with passes that torch's keys do not tell apart."""


def with_passes(source: str, changes: list[Edit], same: list[Edit] | None = None) -> Subject:
    """Return a subject whose passes inherit from `Named`, its source indented as it stands here."""
    return subject(PASSES + dedent(source), changes, same)


MESH = f"""\
{COLD}import torch.distributed
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
mesh = init_device_mesh("cpu", (2,))

"""
"""Begins programs with tensors that are distributed over two processes, one of which is there."""


def with_mesh(source: str, changes: list[Edit], same: list[Edit] | None = None) -> Subject:
    """Return a subject with `mesh`, its source indented as it stands here."""
    return subject(MESH + dedent(source), changes, same)


SUBJECTS: dict[str, Subject] = {
    "fake": subject(
        """
        ROWS = 4
        def empty(x, rows):
            return x.new_empty(rows, 4)
        @torch.library.custom_op("mylib::scale", mutates_args=())
        def scale(x: Tensor, k: float = 2.0) -> Tensor:
            found = (x * k)[:ROWS]
            return found
        @scale.register_fake
        def fake(x, k=2.0):
            found = empty(x, ROWS)
            return found
        def f(x, w):
            return scale(x).to(w.dtype).mm(w)
        results = infer(f, X, W)
        """,
        [
            edit("ROWS = 4", "ROWS = 2"),
            edit(
                "(x * k)[:ROWS]",
                "(x * k)[:ROWS].t().contiguous().t()",
                "new_empty(rows, 4)",
                "new_empty(4, rows).t()",
            ),
            edit("k: float = 2.0", "k: float = 3.0"),
            edit(
                "x: Tensor, k: float = 2.0) -> Tensor",
                "x: Tensor, k: float = 2.0, j: int = 0) -> Tensor",
                "fake(x, k=2.0)",
                "fake(x, k=2.0, j=0)",
            ),
            edit(
                'scale", mutates_args=()',
                'scale", mutates_args=(), tags=(torch.Tag.needs_fixed_stride_order,)',
            ),
            edit("return x.new_empty(rows, 4)", "return x.new_empty(rows, 4, dtype=X.dtype)"),
        ],
        [
            edit(
                "found = (x * k)[:ROWS]", "found = (x * k + 1)[:ROWS]"
            ),  # the kernel runs when the graph runs
            edit("return found\n@scale", "print(end='')\n    return found\n@scale"),
            edit(
                "found = empty(x, ROWS)", "made = empty(x, ROWS)", "return found\ndef f", "return made\ndef f"
            ),
            edit("def fake(x", "def _(x"),
            edit("def fake(x, k=2.0):", "def fake(x, k=2.0):\n    '''Tell the shape.'''"),
            edit("def fake(x, k=2.0):", "def fake(x, k=2.0):\n    # tell the shape\n"),
            edit("def fake(x, k=2.0):", "def fake(x: Tensor, k: float = 2.0) -> Tensor:"),
            edit("def empty(x, rows)", "def shaped(x, rows)", "found = empty(", "found = shaped("),
            edit("ROWS", "LINES"),
            edit("ROWS = 4", "OTHER = 5\nROWS = 4"),
            edit("def f(x, w)", "def unused(x):\n    return x * 3\ndef f(x, w)"),
            edit("ROWS = 4", "\n\n\nROWS = 4"),
            edit("found = empty(x, ROWS)", "found = empty(\n        x,\n        ROWS,\n    )"),
            edit(
                "def f(x, w)",
                "@torch.library.custom_op('mylib::other', mutates_args=())\n"
                "def other(x: Tensor) -> Tensor:\n    return x + 1\ndef f(x, w)",
            ),
        ],
        alike=[
            edit(
                "(x * k)[:ROWS]",
                "(x * k)[:ROWS].double()",
                "new_empty(rows, 4)",
                "new_empty(rows, 4, dtype=torch.float64)",
            ),
            edit(
                "(x * k)[:ROWS]", "(x * k)[:ROWS].half()", "new_empty(rows, 4)", "new_empty(rows, 4).half()"
            ),
            edit("(x * k)[:ROWS]", "(x * k)[:3].clone()", "empty(x, ROWS)", "empty(x, 3)"),
            edit("(x * k)[:ROWS]", "(x * k)[:ROWS, :].repeat(2, 1)", "empty(x, ROWS)", "empty(x, 2 * ROWS)"),
            edit("k: float = 2.0", "k: float = 2.5", "k=2.0", "k=2.5"),
            edit("rows, 4)", "rows, WIDTH)", "ROWS = 4", "ROWS, WIDTH = 4, 4"),
        ],
    ),
    "autograd": subject(
        """
        GAIN = 2.0
        def helper(g, by):
            return g * by
        def make(by):
            def backward(ctx, g):
                (x,) = ctx.saved_tensors
                return helper(g, by) * ctx.extra + x * 0
            return backward
        def setup(ctx, inputs, output):
            (x,) = inputs
            ctx.save_for_backward(x)
            ctx.extra = GAIN
        @torch.library.custom_op("mylib::op", mutates_args=())
        def op(x: Tensor) -> Tensor:
            return x * 2
        @op.register_fake
        def _(x):
            return torch.empty_like(x)
        op.register_autograd(make(1.0), setup_context=setup)
        def f(x, w):
            return op(x).mm(w)
        results = train(f, X, W)
        """,
        [
            edit("GAIN = 2.0", "GAIN = 3.0"),
            edit("return g * by", "return g * by * 2"),
            edit("ctx.save_for_backward(x)", "ctx.save_for_backward(x * 5)", "+ x * 0", "+ x"),
            edit("ctx.extra = GAIN", "ctx.extra = GAIN * x.shape[0]"),
            edit(
                "op.register_autograd(make(1.0), setup_context=setup)",
                "op.register_autograd(functools.partial(lambda by, ctx, g: g * by, 7.0))",
            ),
            edit(
                "op.register_autograd(make(1.0), setup_context=setup)",
                "class Rules:\n    def __init__(self, by): self.by = by\n"
                "    def backward(self, ctx, g): return g * self.by\n"
                "op.register_autograd(Rules(3.0).backward)",
            ),
        ],
        [
            edit("helper(", "assistant("),
            edit("return x * 2", "return x + x"),
            edit("def setup(ctx", "def set_up(ctx", "setup_context=setup", "setup_context=set_up"),
            edit("(x,) = inputs", "(first,) = inputs", "save_for_backward(x)", "save_for_backward(first)"),
            edit("GAIN", "FACTOR"),
            edit("def helper(g, by):", "def helper(g, by):\n    'Scale a gradient.'"),
            edit("def helper(g, by):", "\n# the rule\ndef helper(g, by):"),
        ],
        alike=[
            edit("make(1.0)", "make(4.0)"),
            edit("* ctx.extra", "/ ctx.extra"),
            edit("GAIN = 2.0", "GAIN = 2.5\nGAIN += 1"),
            edit("return g * by", "return g * by + 1"),
            edit("return g * by", "return g / (by + 1)"),
            edit("+ x * 0", "+ x"),
            edit("+ x * 0", "+ x.sin()"),
            edit("ctx.extra = GAIN", "ctx.extra = math.pi"),
            edit("ctx.extra = GAIN", "ctx.extra = -GAIN"),
        ],
    ),
    "library": subject(
        """
        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                with torch._C._AutoDispatchBelowAutograd():
                    return torch.ops.mylib.twice(x)
            @staticmethod
            def backward(ctx, g):
                return g * 2
        def inner(x):
            return x.mm(x)
        def composite(x):
            return inner(x) + x
        def explicit(x):
            return x.new_ones(4, 4)
        lib = torch.library.Library("mylib", "DEF")
        lib.define("twice(Tensor x) -> Tensor")
        lib.define("composite(Tensor x) -> Tensor")
        lib.define("explicit(Tensor x) -> Tensor")
        lib.impl("twice", lambda x: x * 2, "CPU")
        lib.impl("twice", lambda x: torch.empty_like(x), "Meta")
        lib.impl("twice", lambda x: Scaled.apply(x), "Autograd")
        lib.impl("composite", composite, "CompositeImplicitAutograd")
        lib.impl("explicit", explicit, "CompositeExplicitAutograd")
        ops = torch.ops.mylib
        def f(x, w):
            product = ops.twice(x).mm(ops.composite(w))
            return product.to(torch.float32) + ops.explicit(x.detach()).to(torch.float32)
        results = train(f, X, W)
        """,
        [
            edit("return g * 2", "return g * 3"),
            edit("lambda x: Scaled.apply(x)", "lambda x: Scaled.apply(x) * 1.5", "def f(", COLD + "def f("),
            edit("return x.mm(x)", "return x.mm(x.t())"),
            edit('impl("composite", composite,', 'impl("composite", functools.partial(torch.mul, 3.0),'),
            edit(
                "lambda x: x * 2",
                "lambda x: (x * 2).double()",
                "torch.empty_like(x)",
                "torch.empty_like(x, dtype=torch.float64)",
                ".mm(ops.composite(w))",
                ".mm(ops.composite(w).double())",
            ),
            edit("x.new_ones(4, 4)", "x.new_ones(4, 4, dtype=torch.int64)"),
            edit(
                '"composite(Tensor x) -> Tensor"',
                '"composite(Tensor x, int k=1) -> Tensor"',
                "def composite(x)",
                "def composite(x, k=1)",
            ),
        ],
        [
            edit("lambda x: x * 2", "lambda x: x + x"),
            edit("Scaled", "Doubled"),
            edit("def inner", "def inmost", "inner(x)", "inmost(x)"),
            edit("torch.empty_like(x)", "torch.empty_like(  # a shape\nx)"),
            edit("lambda x: x * 2", "lambda y: y * 2"),
        ],
        alike=[
            edit("return inner(x) + x", "return inner(x) - x"),
            edit('impl("composite", composite,', 'impl("composite", inner,'),
            edit("return g * 2", "return g * 2 + 1"),
            edit("return g * 2", "return g.sin()"),
            edit("lambda x: Scaled.apply(x)", "lambda x: Scaled.apply(-x)"),
            edit("return x.mm(x)", "return x.t().mm(x)"),
            edit("return inner(x) + x", "return inner(x + 1)"),
            edit("x.new_ones(4, 4)", "x.new_ones(1, 4)"),
        ],
    ),
    "by name": subject(
        """
        def shape(x):
            return torch.empty_like(x)
        def backward(ctx, g):
            return g * 2
        lib = torch.library.Library("mylib", "FRAGMENT")
        torch.library.define("mylib::first", "(Tensor x) -> Tensor")
        torch.library.define("mylib::second", "(Tensor x) -> Tensor")
        torch.library.impl("mylib::first", "cpu", lambda x: x * 2)
        torch.library.impl("mylib::second", "cpu", lambda x: x + 1)
        torch.library.register_fake("mylib::first", shape)
        torch.library.register_fake("mylib::second", shape)
        torch.library.register_autograd("mylib::first", backward)
        torch.library.register_autograd("mylib::second", lambda ctx, g: torch.ops.mylib.first(g))
        def f(x, w):
            return torch.ops.mylib.second(torch.ops.mylib.first(x)).to(w.dtype).mm(w)
        results = train(f, X, W)
        """,
        [
            edit("return g * 2", "return g * 4"),
            edit("torch.ops.mylib.first(g)", "torch.ops.mylib.first(g) * 2"),
            edit(
                "lambda x: x * 2",
                "lambda x: (x * 2)[:2]",
                "lambda x: x + 1",
                "lambda x: x + 1",
                "return torch.empty_like(x)",
                "return torch.empty_like(x)[:2]",
                "return g * 2",
                "return torch.cat([g, g])",
            ),
            edit(
                'first", shape',
                'first", lambda x: torch.empty_like(x, dtype=torch.float64)',
                "lambda x: x * 2",
                "lambda x: (x * 2).double()",
                "return g * 2",
                "return g.float() * 2",
            ),
        ],
        [
            edit("lambda x: x * 2", "lambda x: x * 2.0 * 1"),
            edit("def shape(x):", "def shape(x):\n    'The same.'"),
            edit("def backward(", "def back(", 'first", backward', 'first", back'),
        ],
        alike=[
            edit("return g * 2", "return g.cos()"),
            edit("torch.ops.mylib.first(g)", "torch.ops.mylib.second(g)"),
        ],
    ),
    "mutation": subject(
        """
        @torch.library.custom_op("mylib::put", mutates_args=("out",))
        def put(x: Tensor, out: Tensor) -> None:
            out.copy_(x * 2)
        @torch.library.custom_op("mylib::read", mutates_args=())
        def read(x: Tensor) -> Tensor:
            return x + 1
        @read.register_fake
        def _(x):
            return torch.empty_like(x)
        def f(x, w):
            out = torch.zeros_like(x)
            put(x, out)
            return read(out).mm(w), out
        results = infer(f, X, W)
        MODE = "default"
        """,
        [
            edit(
                'mutates_args=("out",)',
                'mutates_args=("out", "x")',
                "out.copy_(x * 2)",
                "out.copy_(x * 2); x.add_(1)",
            ),
            edit(
                "return x + 1",
                "x.add_(1); return x + 1",
                'read", mutates_args=()',
                'read", mutates_args=("x",)',
            ),
        ],
        [edit("out.copy_(x * 2)", "out.copy_(x * 3)")],
    ),
    "triton_op": subject(
        """
        BY = 2
        def step(x):
            return x.mm(x) * BY
        @torch.library.triton_op("mylib::body", mutates_args={})
        def body(x: Tensor) -> Tensor:
            return step(x) + 1
        def f(x, w):
            return body(x).mm(w)
        results = infer(f, X, W)
        """,
        [
            edit("BY = 2", "BY = 3"),
            edit("return x.mm(x)", "return x.mm(x.t())"),
            edit("return step(x) + 1", "return step(x) + 2"),
            edit("return step(x) + 1", "return step(step(x))"),
        ],
        [edit("step", "stage"), edit("def step(x):", "def step(x):  # once\n")],
    ),
    "vmap": subject(
        """
        def rule(info, in_dims, x):
            return torch.ops.mylib.op(x) * 1, in_dims[0]
        @torch.library.custom_op("mylib::op", mutates_args=())
        def op(x: Tensor) -> Tensor:
            return x * 2
        @op.register_fake
        def _(x):
            return torch.empty_like(x)
        op.register_vmap(rule)
        def f(x, w):
            return torch.vmap(op)(x).mm(w)
        results = infer(f, X, W)
        """,
        [
            edit("torch.ops.mylib.op(x) * 1", "torch.ops.mylib.op(x) * 2"),
            edit("torch.ops.mylib.op(x) * 1", "torch.ops.mylib.op(x + 1)"),
        ],
        [edit("rule", "batched")],
    ),
    "autocast": subject(
        """
        @torch.library.custom_op("mylib::op", mutates_args=())
        def op(x: Tensor) -> Tensor:
            return x * 2
        @op.register_fake
        def _(x):
            return torch.empty_like(x)
        op.register_autocast("cpu", torch.bfloat16)
        def f(x, w):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return op(x), x.mm(w)
        results = infer(f, X, W)
        """,
        [
            edit('"cpu", torch.bfloat16)\ndef', '"cpu", torch.float16)\ndef'),
            edit('op.register_autocast("cpu", torch.bfloat16)', ""),
        ],
    ),
    "torch_dispatch": subject(
        """
        FACTOR = 2
        def scaled(x):
            return x * FACTOR
        class Base(torch.Tensor):
            def extra(x):
                return x
        class Wrapped(Base):
            @staticmethod
            def __new__(cls, held):
                return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)
            @torch._dynamo.disable  # which torch 2.11 fails to trace
            def __init__(self, held):
                self.held = held
            def __tensor_flatten__(self):
                return ["held"], None
            @staticmethod
            def __tensor_unflatten__(tensors, context, size, stride):
                return Wrapped(tensors["held"])
            @classmethod
            def __torch_dispatch__(cls, func, types, args, kwargs=None):
                unwrapped = torch.utils._pytree.tree_map_only(Wrapped, lambda each: each.held, args)
                found = func(*unwrapped, **(kwargs or {}))
                if func in HANDLED:
                    found = HANDLED[func](Base.extra(found))
                return Wrapped(found) if isinstance(found, torch.Tensor) else found
        HANDLED = {torch.ops.aten.mm.default: scaled}
        def f(x, w):
            return x.mm(w)
        def results(compile):
            with torch.no_grad():
                found = compile(f)(Wrapped(X.clone()), Wrapped(W.clone()))
            return [found.held]
        """,
        [
            edit("FACTOR = 2", "FACTOR = 3"),
            edit("{torch.ops.aten.mm.default: scaled}", "{torch.ops.aten.mm.default: torch.sin}"),
            edit("def extra(x):\n        return x", "def extra(x):\n        return x + 1"),
            edit("func(*unwrapped, **(kwargs or {}))", "func(*unwrapped, **(kwargs or {})) * 2"),
            edit("lambda each: each.held", "lambda each: each.held * 2"),
            edit(
                'return Wrapped(tensors["held"])',
                'return Wrapped(tensors["held"] * 2)',
                "def f(",
                COLD + "def f(",
            ),
        ],
        [
            edit("FACTOR", "BY"),
            edit("class Base(torch.Tensor):", "class Base(torch.Tensor):\n    'Does nothing.'"),
            edit("found = func(", "# as everywhere\n        found = func("),
            edit("unwrapped", "plain"),
        ],
        alike=[
            edit("return x * FACTOR", "return x - FACTOR"),
            edit("{torch.ops.aten.mm.default: scaled}", "{}"),
            edit("if func in HANDLED", "if func not in HANDLED", "HANDLED[func](Base.extra(found))", "found"),
            edit("func(*unwrapped, **(", "func(*unwrapped[:: 1 - 2 * (func in HANDLED)], **("),
        ],
    ),
    "lowering": subject(
        """
        from torch._inductor import lowering
        from torch._inductor.lowering import register_lowering
        BY = 2.0
        @torch.library.custom_op("mylib::op", mutates_args=())
        def op(x: Tensor) -> Tensor:
            return x * 2
        @op.register_fake
        def _(x):
            return torch.empty_like(x)
        @register_lowering(torch.ops.mylib.op.default, type_promotion_kind=None)
        def lowered(x):
            return lowering.lowerings[torch.ops.aten.mul.Tensor](x, BY)
        def f(x, w):
            return op(x).mm(w)
        results = infer(f, X, W)
        MODE = "default"
        """,
        [
            edit("BY = 2.0", "BY = 3.0", "return x * 2", "return x * 3"),
            edit(
                "BY = 2.0",
                "BY = 2.0\nlib = torch.library.Library('mylib', 'FRAGMENT')",
                "(x, BY)",
                "(x, -BY)",
                "return x * 2",
                "return x * -2",
            ),
            edit("(x, BY)", "(x, x)", "return x * 2", "return x * x"),
        ],
        [edit("BY", "FACTOR"), edit("def lowered(x):", "def lowered(x):  # twice\n")],
    ),
    "lowering of torch's": subject(
        """
        from torch._inductor import lowering
        BY = 2.0
        def lowered(x):
            return lowering.lowerings[torch.ops.aten.mul.Tensor](x, BY)
        lowering.lowerings[torch.ops.aten.asinh.default] = lowered
        def f(x, w):
            return torch.asinh(x).mm(w)
        results = infer(f, X, W)
        MODE = "default"
        AGAINST = "cold"
        """,
        [
            edit("BY = 2.0", "BY = 3.0"),
            edit("lowering.lowerings[torch.ops.aten.asinh.default] = lowered", ""),
            edit("(x, BY)", "(x, x)"),
        ],
        [edit("BY", "FACTOR")],
    ),
    "torch's own in another place": subject(
        """
        from torch._inductor import lowering
        from torch._inductor.codegen import cpp
        from torch._inductor.decomposition import decompositions
        from torch._inductor.virtualized import ops
        @torch.library.custom_op("mylib::op", mutates_args=())
        def op(x: Tensor) -> Tensor:
            return x.sin()
        @op.register_fake
        def _(x):
            return torch.empty_like(x)
        lowering.register_lowering(torch.ops.mylib.op.default)(lowering.make_pointwise(ops.sin))
        lowering.lowerings[torch.ops.aten.asinh.default] = lowering.lowerings[torch.ops.aten.sin.default]
        decompositions[torch.ops.aten.mish.default] = functools.partial(torch.mul, other=2.0)
        BY = "2.0f"
        cpp.CppOverrides.lgamma = staticmethod(lambda x: f"({x} * {BY})")
        cpp.CppVecOverrides.lgamma = staticmethod(lambda x: f"({x} * at::vec::Vectorized<float>({BY}))")
        def f(x, w):
            return op(x) + torch.asinh(w) + torch.nn.functional.mish(x) + torch.lgamma(w)
        results = infer(f, X, W)
        MODE = "default"
        AGAINST = "cold"
        """,
        [
            edit("x.sin()", "x.cos()", "ops.sin)", "ops.cos)"),
            edit("lowerings[torch.ops.aten.sin.default]", "lowerings[torch.ops.aten.cos.default]"),
            edit("other=2.0", "other=3.0"),
            edit("functools.partial(torch.mul, other=2.0)", "torch.cos"),
            edit("decompositions[torch.ops.aten.mish.default] = functools.partial(torch.mul, other=2.0)", ""),
            edit('BY = "2.0f"', 'BY = "3.0f"'),
            edit(
                "= lowering.lowerings[",
                "= lowering.lowerings.pop(torch.ops.aten.tan.default, None) or lowering.lowerings[",
            ),
        ],
        [edit("BY", "FACTOR")],
    ),
    "decomposition": subject(
        """
        from torch._inductor.decomposition import decompositions
        BY = 2.0
        def decomposed(x):
            return x * BY
        decompositions[torch.ops.aten.asinh.default] = decomposed
        def f(x, w):
            return torch.asinh(x).mm(w)
        results = infer(f, X, W)
        AGAINST = "cold"
        """,
        [
            edit("BY = 2.0", "BY = 3.0"),
            edit("return x * BY", "return x + BY"),
            edit("= decomposed", "= torch.sin"),
            edit("decompositions[torch.ops.aten.asinh.default] = decomposed", ""),
        ],
        [edit("BY", "FACTOR"), edit("decomposed", "split")],
    ),
    "pattern": subject(
        """
        from torch._inductor.fx_passes.post_grad import pass_patterns
        from torch._inductor.pattern_matcher import Arg, CallFunction, register_graph_pattern
        BY = 2.0
        def handled(match, x):
            with match.graph.inserting_before(match.output_node()):
                made = match.graph.call_function(torch.ops.aten.mul.Tensor, (x, BY))
                made.meta["val"] = match.output_node().meta["val"]
                match.output_node().replace_all_uses_with(made)
                match.erase_nodes()
        def applies(match):
            return True
        register_graph_pattern(
            CallFunction(torch.ops.aten.asinh.default, Arg()), pass_dict=pass_patterns[1], extra_check=applies
        )(handled)
        def f(x, w):
            return torch.asinh(x).mm(w)
        results = infer(f, X, W)
        MODE = "default"
        AGAINST = "cold"
        """,
        [
            edit("BY = 2.0", "BY = 3.0"),
            edit("aten.mul.Tensor", "aten.add.Tensor"),
            edit("return True", "return False"),
            edit("aten.asinh.default, Arg", "aten.atanh.default, Arg"),
        ],
        [edit("BY", "FACTOR"), edit("applies", "fits")],
    ),
    "pass": subject(
        """
        import torch._inductor.config as config
        from torch._inductor.custom_graph_pass import CustomGraphPass
        TARGET = torch.ops.aten.sin.default
        def replaced(node):
            node.target = TARGET
        class Pass(CustomGraphPass):
            def __call__(self, graph):
                for node in graph.nodes:
                    if node.target is torch.ops.aten.asinh.default:
                        replaced(node)
            def uuid(self):
                return "always the same"
        config.post_grad_custom_post_pass = Pass()
        def f(x, w):
            return torch.asinh(x).mm(w)
        results = infer(f, X, W)
        AGAINST = "cold"
        """,
        [
            edit("aten.sin.default", "aten.cos.default"),
            edit("node.target = TARGET", "pass"),
            edit("aten.asinh.default:", "aten.mm.default and False:"),
            edit(
                "post_grad_custom_post_pass",
                "post_grad_custom_pre_pass",
                "aten.sin.default",
                "aten.tanh.default",
            ),
            edit("always the same", "another"),
        ],
        [
            edit("replaced", "changed"),
            edit("class Pass(", "class Other(", "Pass()", "Other()"),
            edit("TARGET", "INSTEAD"),
        ],
    ),
    "function as a pass": subject(
        """
        import torch._functorch.config as functorch_config
        TARGET = torch.ops.aten.sin.default
        def replaced(graph, inputs):
            for node in graph.graph.nodes:
                if node.target is torch.ops.aten.asinh.default:
                    node.target = TARGET
            graph.recompile()
            return graph
        functorch_config.joint_custom_pass = replaced
        def f(x, w):
            return torch.asinh(x.detach()).mm(w)
        results = train(f, X, W)
        AGAINST = "cold"
        """,
        [
            edit("aten.sin.default", "aten.cos.default"),
            edit("node.target = TARGET", "pass"),
            edit("functorch_config.joint_custom_pass = replaced", ""),
        ],
        [edit("replaced", "changed"), edit("TARGET", "INSTEAD")],
    ),
    "autograd function": subject(
        """
        BY = 2
        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * BY
            @staticmethod
            def backward(ctx, g):
                (x,) = ctx.saved_tensors
                return g * BY + x
        def f(x, w):
            return Scaled.apply(x).mm(w)
        results = train(f, X, W)
        """,
        [
            edit("BY = 2", "BY = 3"),
            edit("return g * BY + x", "return g * BY - x"),
            edit("return x * BY", "return x + BY"),
            edit("save_for_backward(x)", "save_for_backward(x * 2)"),
        ],
        [
            edit("BY", "FACTOR"),
            edit(
                "class Scaled(torch.autograd.Function):",
                "class Scaled(torch.autograd.Function):\n    'Twice.'",
            ),
        ],
    ),
    "inner compile": subject(
        """
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner
        TARGET = torch.ops.aten.sin.default
        def inner(graph, inputs, **options):
            for node in graph.graph.nodes:
                if node.target is torch.ops.aten.asinh.default:
                    node.target = TARGET
            graph.recompile()
            return compile_fx_inner(graph, inputs, **options)
        def backend(graph, inputs):
            return compile_fx(graph, inputs, inner_compile=inner)
        def f(x, w):
            return torch.asinh(x).mm(w)
        def results(compile):
            with torch.no_grad():
                return [torch.compile(f, backend=backend)(X, W)]
        AGAINST = "cold"
        """,
        [edit("aten.sin.default", "aten.cos.default"), edit("node.target = TARGET", "pass")],
        [edit("TARGET", "INSTEAD")],
    ),
    "aten": subject(
        """
        lib = torch.library.Library("aten", "IMPL")
        BY = 2
        def relu(x):
            return x * BY
        lib.impl("asinh", relu, "Autograd")
        def f(x, w):
            return torch.asinh(x).mm(w)
        results = infer(f, X, W)
        """,
        [
            edit("BY = 2", "BY = 3"),
            edit('lib.impl("asinh", relu, "Autograd")', ""),
            edit('"asinh", relu', '"asinh", torch.cos'),
            edit('"asinh", relu', '"asinh", functools.partial(torch.mul, 3.0)'),
            edit('"asinh", relu', '"asinh", functools.partial(torch.mul, 4.0)'),
        ],
        [edit("BY", "FACTOR"), edit("def relu", "def gelu", "relu", "gelu")],
        alike=[
            edit("x * BY", "x + BY"),
            edit('"asinh", relu', '"asinh", torch.sin'),
        ],
    ),
    "aten in Python": subject(
        """
        BY = 2
        @torch.ops.aten.asinh.default.py_impl(torch._C.DispatchKey.Autograd)
        def relu(x):
            return x * BY
        def f(x, w):
            return torch.asinh(x).mm(w)
        results = infer(f, X, W)
        AGAINST = "cold"
        """,
        [edit("BY = 2", "BY = 3"), edit("x * BY", "x + BY")],
        [edit("BY", "FACTOR")],
    ),
    "shared memory": subject(
        """
        P, Q = torch.zeros(6, 8), torch.zeros(6, 8)
        PAIR = (P, Q)
        def f(x, y):
            x.add_(1)
            return x + y
        DYNAMIC = None
        def results(compile):
            with torch.no_grad():
                return [compile(f, dynamic=DYNAMIC)(*PAIR), *PAIR]
        """,
        [
            edit("PAIR = (P, Q)", "PAIR = (P, P.view(6, 8))"),
            edit(
                "P, Q = torch.zeros(6, 8), torch.zeros(6, 8)", "L = torch.zeros(12, 8); P, Q = L[:6], L[3:9]"
            ),
            edit(
                "P, Q = torch.zeros(6, 8), torch.zeros(6, 8)", "L = torch.zeros(12, 8); P, Q = L[:6], L[6:]"
            ),
            edit(
                "P, Q = torch.zeros(6, 8), torch.zeros(6, 8)",
                "L = torch.zeros(6, 16); P, Q = L[:, ::2], L[:, 1::2]",
            ),
            edit("DYNAMIC = None", "DYNAMIC = True", "PAIR = (P, Q)", "PAIR = (P, P.view(6, 8))"),
        ],
        [
            edit("def f(x, y):", "def f(x, y):  # both"),
            edit("PAIR", "INPUTS"),
            edit("torch.zeros(6, 8), torch.zeros(6, 8)", "torch.zeros(6, 8), torch.zeros(48).view(6, 8)"),
        ],
        alike=[
            edit("PAIR = (P, Q)", "PAIR = (P.view(6, 8), P.view(6, 8))"),
            edit("PAIR = (P, Q)", "PAIR = (P, P[:])"),
            edit("P, Q = torch.zeros(6, 8), torch.zeros(6, 8)", "L = torch.zeros(7, 8); P, Q = L[:6], L[1:]"),
            edit(
                "P, Q = torch.zeros(6, 8), torch.zeros(6, 8)",
                "L = torch.zeros(6, 16); P, Q = L[:, ::2], L[:, ::2]",
            ),
        ],
    ),
    "shared memory before": subject(
        """
        L = torch.zeros(6, 8)
        PAIR = (L, L.view(6, 8))
        def f(x, y):
            x.add_(1)
            return x + y
        def results(compile):
            with torch.no_grad():
                return [compile(f)(*PAIR), *PAIR]
        """,
        [
            edit("(L, L.view(6, 8))", "(L, torch.zeros(6, 8))"),
            edit("(L, L.view(6, 8))", "(L.clone(), L.view(6, 8))"),
            edit("(L, L.view(6, 8))", "(L, L)"),
        ],
        [edit("L.view(6, 8)", "L.view(48).view(6, 8)")],
    ),
    "leaves": subject(
        """
        torch.manual_seed(0)
        G, D = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
        def made():
            return torch.ones(8, 4, requires_grad=True)
        def loss(fake, real):
            return D(fake.detach()).exp().mean() - D(real).mean()
        def results(compile):
            fake = made()
            value = compile(loss)(fake, torch.ones(8, 4))
            value.backward()
            if fake.grad_fn is not None:
                D(fake).mean().backward()
            grads = [each.grad for each in (*D.parameters(), *G.parameters())]
            return [value.detach(), *(grad for grad in grads if grad is not None)]
        """,
        [
            edit("torch.ones(8, 4, requires_grad=True)", "torch.tanh(G(torch.ones(8, 4)))"),
            edit("torch.ones(8, 4, requires_grad=True)", "torch.ones(8, 4, requires_grad=True) * 1"),
        ],
        [edit("torch.ones(8, 4, requires_grad=True)", "torch.ones(8, 4).requires_grad_()")],
    ),
    "leaves before": subject(
        """
        def made():
            return torch.ones(4, requires_grad=True) * 1
        def f(x, w):
            x.detach().mul_(2)
            return (x * w).sum()
        def results(compile):
            x, w = made(), torch.ones(4, requires_grad=True)
            value = compile(f)(x, w)
            value.backward()
            return [value.detach(), w.grad]
        """,
        [edit(" * 1", "")],
        [edit("* 1", "+ 0")],
    ),
    "leaves beside shared memory": subject(
        """
        torch.manual_seed(0)
        G, L = torch.nn.Linear(4, 4), torch.zeros(4, 4)
        def made():
            return torch.ones(4, 4, requires_grad=True)
        def loss(fake, w, a, b):
            return (fake.detach() * w).exp().mean() + (a + b).sum()
        def results(compile):
            fake, w = made(), torch.ones(4, 4, requires_grad=True)
            value = compile(loss)(fake, w, L, L.view(4, 4))
            value.backward()
            if fake.grad_fn is not None:
                fake.mean().backward()
            grads = [each.grad for each in (w, *G.parameters())]
            return [value.detach(), *(grad for grad in grads if grad is not None)]
        """,
        [edit("torch.ones(4, 4, requires_grad=True)\n", "torch.tanh(G(torch.ones(4, 4)))\n")],
        [edit("torch.ones(4, 4, requires_grad=True)\n", "torch.ones(4, 4).requires_grad_()\n")],
    ),
    "a number in another cell": subject(
        """
        def f(x, k):
            return x + math.comb(k, 2)
        def g(x):
            return len(x.split(2)) + math.comb(len(x), 2) + x
        def results(compile):
            with torch.no_grad():
                return [compile(f, fullgraph=True)(X, K), compile(g, fullgraph=True)(torch.ones(ROWS, 2))]
        # %%
        K, ROWS = 3, 6
        """,
        [edit("3, 6", "5, 6"), edit("3, 6", "3, 8"), edit("3, 6", "4, 10")],
    ),
    "dynamic overlap": subject(
        """
        L = torch.zeros(6, 8)
        PAIRS = [(L, L.view(6, 8)), (torch.zeros(6, 8), torch.zeros(6, 8))]
        def f(x, y):
            x.add_(1)
            return x + y
        def results(compile):
            g = compile(f, dynamic=True)
            with torch.no_grad():
                return [g(*pair) for pair in PAIRS]
        """,
        [edit("torch.zeros(6, 8), torch.zeros(6, 8))]", "torch.zeros(5, 8), torch.zeros(5, 8))]")],
        [edit("PAIRS", "BOTH")],
    ),
    "in the graph": subject(
        """
        BY = 2
        @torch._dynamo.nonstrict_trace
        def traced(x):
            return x * BY
        @torch._dynamo.allow_in_graph
        def allowed(x):
            return x + BY
        def f(x, w):
            return traced(x).mm(w) + allowed(w)
        results = infer(f, X, W)
        """,
        [edit("BY = 2", "BY = 3"), edit("x * BY", "x - BY"), edit("x + BY", "x / BY")],
    ),
    "unknown": subject(
        """
        import os
        os.environ["SCALE"] = "2"
        ROWS = (each for each in [1])
        @torch.library.custom_op("mylib::op", mutates_args=())
        def op(x: Tensor) -> Tensor:
            return x * 2
        @op.register_fake
        def _(x):
            return torch.empty_like(x)
        op.register_autograd(lambda ctx, g: g * float(os.environ["SCALE"]))
        def f(x, w):
            return op(x).mm(w)
        results = train(f, X, W)
        """,
        [
            edit('= "2"', '= "3"'),
            edit('os.environ["SCALE"])', 'os.getenv("SCALE"))', '= "2"', '= "4"'),
            edit('float(os.environ["SCALE"])', 'eval("3.0")'),
            edit('float(os.environ["SCALE"])', "(7.0 if ROWS else 1.0)"),
        ],
    ),
    "composition": subject(
        """
        from dataclasses import dataclass, field
        from enum import Enum
        class Kind(Enum):
            SUM = 1
            DIFFERENCE = 2
        @dataclass
        class Options:
            gain: float = 2.0
            kind: Kind = Kind.SUM
            weights: list = field(default_factory=lambda: [1.0, 2.0])
            def total(self):
                return self.gain * sum(self.weights)
        OPTIONS = Options()
        TABLE = {"plus": 1.0, "minus": -1.0}
        @functools.lru_cache
        def factor(name):
            return TABLE[name]
        @functools.wraps(factor)
        def wrapped(*arguments):
            return factor(*arguments) * 2
        class Rule:
            scale = 0.5
            def __call__(self, ctx, g):
                from math import sqrt
                if OPTIONS.kind is Kind.SUM:
                    return g * OPTIONS.total() * wrapped("plus") * self.scale
                return g * sqrt(4.0)
        @torch.library.custom_op("mylib::op", mutates_args=())
        def op(x: Tensor) -> Tensor:
            return x * 2
        @op.register_fake
        def _(x):
            return torch.empty_like(x)
        op.register_autograd(Rule())
        def f(x, w):
            return op(x).mm(w)
        results = train(f, X, W)
        """,
        [
            edit("kind: Kind = Kind.SUM", "kind: Kind = Kind.DIFFERENCE"),
            edit("[1.0, 2.0]", "[1.0, 3.0]"),
            edit("OPTIONS = Options()", "OPTIONS = Options(); OPTIONS.gain = 9.0"),
            edit('"plus": 1.0', '"plus": 4.0'),
            edit("factor(*arguments) * 2", "factor(*arguments) * 5"),
            edit("scale = 0.5", "scale = 0.25"),
            edit("Rule())", "types.SimpleNamespace(backward=lambda ctx, g: g * 8.0).backward)"),
            edit("def f(x, w)", "Rule.__call__ = lambda self, ctx, g: g * 6.0\ndef f(x, w)"),
            edit("def f(x, w)", "sum = max\ndef f(x, w)"),
            edit(
                "SUM = 1\n    DIFFERENCE = 2",
                "SUM = 1\n    DIFFERENCE = 1",
                "kind: Kind = Kind.SUM",
                "kind: Kind = None",
            ),
        ],
        [
            edit("class Rule:", "class Rule:\n    'A rule.'"),
            edit("Options", "Settings"),
            edit("TABLE", "SIGNS"),
            edit("wrapped", "twice"),
            edit("gain: float", "gain: int"),
            edit("OPTIONS = Options()", "OPTIONS = Options(gain=2.0)"),
        ],
        alike=[
            edit("self.gain * sum", "self.gain + sum"),
            edit("return TABLE[name]", "return -TABLE[name]"),
            edit("gain: float = 2.0", "gain: float = 3.0"),
            edit("OPTIONS = Options()", "OPTIONS = Options(gain=7.0)"),
            edit("* self.scale", "+ self.scale"),
        ],
    ),
    "attributes of torch's": subject(
        """
        import operator
        BY = 2
        NAME = "named"
        CALL = operator.methodcaller("called")
        PATH = "ops.mylib.inner".split(".")
        Tensor.scaled = Tensor.named = Tensor.called = lambda self: self * BY
        Tensor.SCALE = 2.0
        torch.nn.Linear.SCALE = 1.0
        torch.nn.functional.mine = lambda x: x
        torch.nn.GELU.forward = lambda self, x: x
        @torch.library.custom_op("mylib::inner", mutates_args=())
        def inner(x: Tensor) -> Tensor:
            return x * 2
        @inner.register_fake
        def _(x):
            return torch.empty_like(x)
        @inner.register_vmap
        def _(info, in_dims, x):
            return x * 2.0, in_dims[0]
        def backward(ctx, g):
            F = torch.nn.functional
            return torch.nn.GELU()(F.mine(g.scaled())) * g.SCALE * torch.nn.Linear.SCALE
        @torch.library.custom_op("mylib::op", mutates_args=())
        def op(x: Tensor) -> Tensor:
            return x * 2
        @op.register_fake
        def _(x):
            return torch.empty_like(x)
        op.register_autograd(backward)
        def f(x, w):
            return op(x).mm(w)
        results = train(f, X, W)
        """,
        [
            edit("BY = 2", "BY = 3"),
            edit("Tensor.SCALE = 2.0", "Tensor.SCALE = 3.0"),
            edit("Linear.SCALE = 1.0", "Linear.SCALE = 3.0"),
            edit("mine = lambda x: x", "mine = lambda x: x * 3"),
            edit("g.scaled()", "getattr(g, NAME)()"),
            edit("g.scaled()", "getattr(g, NAME)()", "BY = 2", "BY = 4"),
            edit("g.scaled()", "CALL(g)"),
            edit("g.scaled()", "CALL(g)", "BY = 2", "BY = 4"),
            edit("g.scaled()", "torch.vmap(functools.reduce(getattr, PATH, torch))(g)"),
            edit(
                "g.scaled()", "torch.vmap(functools.reduce(getattr, PATH, torch))(g)", "x * 2.0,", "x * 4.0,"
            ),
        ],
        [edit("BY", "FACTOR"), edit("Tensor.SCALE = 2.0", "Tensor.SCALE = 2.0; Tensor.unread = 3.0")],
        alike=[
            edit("self * BY", "self + BY"),
            edit("lambda self, x: x", "lambda self, x: x * 3"),
        ],
    ),
    "methods of torch's in any graph": subject(
        """
        BY = 2.0
        Tensor.__add__ = lambda a, b: torch.sub(a, b) * BY
        Tensor.softmax = lambda self, dim, dtype=None: self * BY
        Tensor.__matmul__ = lambda a, b: torch.mm(a, b) * BY
        def f(x, w):
            return (x + w).sin()
        results = infer(f, X, W)
        """,
        [
            edit("BY = 2.0", "BY = 3.0"),
            edit("(x + w).sin()", "x @ w"),
            edit("(x + w).sin()", "x @ w", "BY = 2.0", "BY = 3.0"),
            edit("(x + w).sin()", "torch.nn.functional.softmax(x, 1)"),
            edit("(x + w).sin()", "torch.nn.functional.softmax(x, 1)", "BY = 2.0", "BY = 3.0"),
            edit("Tensor.__add__", "Tensor.__unused__"),
        ],
        [
            edit("BY", "FACTOR"),
            edit("BY = 2.0", "BY = 2.0; Tensor.__repr__ = lambda self: 'x'; Tensor.unread = open"),
        ],
    ),
    "arguments that are no tensors": subject(
        """
        import torch.utils._pytree as pytree
        from torch._library.opaque_object import register_opaque_type
        from torch._opaque_base import OpaqueBase
        BY = 2.0
        class Scale(OpaqueBase):
            def __init__(self, by): self.by = by
            def scaled(self): return self.by * 2.0
            def __eq__(self, other): return self.by == other.by
            def __hash__(self): return hash(self.by)
            def __fx_repr__(self): return f"Scale({self.by})", {"Scale": Scale}
        register_opaque_type(Scale, typ="value")
        SCALE = Scale(1.0)
        class Box:
            def __init__(self, held): self.held = held
        pytree.register_pytree_node(
            Box, lambda box: ([box.held], None), lambda held, _: Box(held[0] * BY), serialized_type_name="Box"
        )
        @torch.library.custom_op("mylib::op", mutates_args=())
        def op(x: Tensor, scale: Scale) -> Tensor:
            return x.clone()
        @op.register_fake
        def _(x, scale):
            return torch.empty_like(x)
        def setup(ctx, inputs, output):
            ctx.scale = inputs[1]
        def backward(ctx, g):
            return pytree.tree_map(lambda each: each.sin(), Box(g)).held * ctx.scale.scaled(), None
        op.register_autograd(backward, setup_context=setup)
        def f(x, w):
            return op(x, SCALE).mm(w)
        results = train(f, X, W)
        """,
        [
            edit("self.by * 2.0", "self.by * 3.0"),
            edit("SCALE = Scale(1.0)", "SCALE = Scale(1.5)"),
            edit("BY = 2.0", "BY = 3.0"),
            edit("([box.held], None)", "([box.held * 3], None)"),
        ],
        [edit("BY", "FACTOR")],
    ),
    "what a subclass keeps beside its tensors": subject(
        """
        class Config:
            def __init__(self, by): self.by = by
            def __call__(self, x): return x * self.by * 2.0
            def __eq__(self, other): return self.by == other.by
            def __hash__(self): return hash(self.by)
        class Wrapped(torch.Tensor):
            @staticmethod
            def __new__(cls, held, context):
                return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)
            @torch._dynamo.disable  # which torch 2.11 fails to trace
            def __init__(self, held, context):
                self.held, self.context = held, context
            def __tensor_flatten__(self):
                return ["held"], self.context
            @staticmethod
            def __tensor_unflatten__(tensors, context, size, stride):
                return Wrapped(tensors["held"], context)
            @classmethod
            def __torch_dispatch__(cls, func, types, args, kwargs=None):
                context = args[0].context
                unwrapped = torch.utils._pytree.tree_map_only(Wrapped, lambda each: each.held, args)
                found = func(*unwrapped, **(kwargs or {}))
                if func is torch.ops.aten.mm.default:
                    found = context[0](found)
                return Wrapped(found, context) if isinstance(found, torch.Tensor) else found
        scale = Config(1.0)
        def double(x):
            return x * 2.0
        CONTEXT = (double,)
        def f(x, w):
            return x.mm(w)
        def results(compile):
            with torch.no_grad():
                found = compile(f)(Wrapped(X.clone(), CONTEXT), Wrapped(W.clone(), CONTEXT))
            return [found.held]
        """,
        [
            edit("return x * 2.0", "return x * 3.0"),
            edit("(double,)", "(scale,)"),
            edit("(double,)", "(scale,)", "self.by * 2.0", "self.by * 3.0"),
            edit("(double,)", "(scale,)", "Config(1.0)", "Config(1.5)"),
        ],
        [edit("double", "twice")],
    ),
    "a class that says it is the standard library's": subject(
        """
        import types as made
        BY = 2.0
        def body(namespace):
            def dispatch(cls, func, types, args, kwargs=None):
                args = torch.utils._pytree.tree_map_only(Wrapped, lambda each: each.held, args)
                found = func(*args, **(kwargs or {}))
                if func is torch.ops.aten.mm.default:
                    found = found * BY
                return wrap(found) if isinstance(found, Tensor) else found
            namespace["__torch_dispatch__"] = classmethod(dispatch)
            namespace["__tensor_flatten__"] = lambda self: (["held"], None)
            namespace["__tensor_unflatten__"] = staticmethod(lambda held, *_: wrap(held["held"]))
        Wrapped = made.Wrapped = made.new_class("Wrapped", (Tensor,), {}, body)
        @torch._dynamo.disable  # which torch 2.11 fails to trace
        def wrap(held):
            found = Tensor._make_wrapper_subclass(Wrapped, held.shape, dtype=held.dtype)
            found.held = held
            return found
        def results(compile):
            with torch.no_grad():
                return [compile(lambda x, w: x.mm(w))(wrap(X.clone()), wrap(W.clone())).held]
        """,
        [edit("BY = 2.0", "BY = 3.0"), edit("found * BY", "found + BY")],
        [edit("BY", "FACTOR")],
    ),
    "kernels that run while torch compiles": subject(
        """
        from torch._inductor import config
        from torch._subclasses.fake_tensor import unset_fake_temporarily
        @torch.library.custom_op("mylib::op", mutates_args=(), tags=(torch.Tag.pointwise,))
        def op(x: Tensor) -> Tensor:
            return x * 2.0
        op.register_fake(lambda x: torch.empty_like(x))
        @torch.library.custom_op("mylib::other", mutates_args=())
        def other(x: Tensor) -> Tensor:
            return x * 4.0
        other.register_fake(lambda x: torch.empty_like(x))
        class Pass(torch._inductor.custom_graph_pass.CustomGraphPass):
            def __call__(self, graph):
                with unset_fake_temporarily():
                    by = other(torch.tensor(1.0)).item()
                for node in graph.nodes:
                    if node.target is torch.ops.aten.asinh.default:
                        node.target, node.args = torch.ops.aten.mul.Tensor, (node.args[0], by)
            def uuid(self):
                return "pass"
        config.post_grad_custom_pre_pass = Pass()
        def f(x, w):
            return x + op(torch.full((4, 4), 3.0)) + torch.asinh(w)
        results = infer(f, X, W)
        MODE = "default"
        AGAINST = "cold"
        """,
        [edit("x * 2.0", "x * 5.0"), edit("x * 4.0", "x * 5.0")],
        [edit("by", "factor")],
    ),
    "what a pass reads of nodes": subject(
        """
        import torch.fx.traceback
        from torch._inductor import config
        BY = 2.0
        torch.fx.Node.become = lambda self, target: setattr(self, "target", target)
        class Inner(torch.nn.Module):
            def forward(self, x):
                return x.sin()
        class Other(Inner):
            pass
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = Inner()
            def forward(self, x, w):
                with torch.fx.traceback.annotate({"by": BY}):
                    y = torch.asinh(w)
                return self.inner(x) + y
        class Pass(torch._inductor.custom_graph_pass.CustomGraphPass):
            def __call__(self, graph):
                for node in graph.nodes:
                    if node.target is torch.ops.aten.asinh.default:
                        by = node.meta.get("custom", {}).get("by", 7.0)
                        node.target, node.args = torch.ops.aten.mul.Tensor, (node.args[0], by)
                    elif node.target is torch.ops.aten.sin.default:
                        if "Other" in str(node.meta.get("nn_module_stack")):
                            node.become(torch.ops.aten.cos.default)
            def uuid(self):
                return "pass"
        config.post_grad_custom_pre_pass = Pass()
        results = infer(Model(), X, W)
        MODE = "default"
        AGAINST = "cold"
        """,
        [
            edit("BY = 2.0", "BY = 3.0"),
            edit("self.inner = Inner()", "self.inner = Other()"),
            edit(
                '"target", target)',
                '"target", torch.ops.aten.tan.default)',
                "inner = Inner()",
                "inner = Other()",
            ),
        ],
        [edit('return "pass"', "return 'pass'  # always")],
    ),
    "what reaches code as an argument": subject(
        """
        from torch._inductor import ir, lowering
        BY = 2.0
        def scaled(self):
            return lowering.lowerings[torch.ops.aten.mul.Tensor](self, BY)
        ir.TensorBox.scaled = scaled
        Tensor.taken = lambda self: self * BY
        torch._dynamo.allow_in_graph(Tensor.taken)
        torch.autograd.function.FunctionCtx.by = lambda self: BY
        torch.distributions.Normal.BY = 4.0
        torch.utils.BY = 5.0
        def of(module):
            return module.BY
        @torch.library.custom_op("mylib::op", mutates_args=())
        def op(x: Tensor) -> Tensor:
            return x * 2.0
        op.register_fake(lambda x: torch.empty_like(x))
        lowering.register_lowering(torch.ops.mylib.op.default, type_promotion_kind=None)(lambda x: x.scaled())
        op.register_autograd(lambda ctx, g: g * ctx.by() * torch.distributions.Normal.BY * of(torch.utils))
        def f(x, w):
            return op(x).mm(w) + x.taken()
        results = train(f, X, W)
        MODE = "default"
        AGAINST = "cold"
        """,
        [edit("BY = 2.0", "BY = 3.0"), edit("BY = 4.0", "BY = 3.0"), edit("BY = 5.0", "BY = 3.0")],
        [edit("of", "asked")],
    ),
    "state that is told by torch": subject(
        """
        from torch._subclasses.fake_tensor import unset_fake_temporarily
        from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
        torch.manual_seed(3)
        torch.backends.mha.set_fastpath_enabled(True)
        torch._dynamo.config.recompile_limit = 8
        COMPLEX = torch.tensor([1.0 + 2.0j])
        LEAF = torch.ones(1, requires_grad=True)
        (LEAF * 2.0).sum().backward()
        def of(config):
            return config.recompile_limit
        def told():
            with unset_fake_temporarily(), disable_proxy_modes_tracing():
                return COMPLEX.sum().item().imag + LEAF.grad.item()
        def backward(ctx, g):
            fast = 2.0 if torch.backends.mha.get_fastpath_enabled() else 3.0
            return g * (torch.initial_seed() % 97) * fast * of(torch._dynamo.config) * told()
        @torch.library.custom_op("mylib::op", mutates_args=())
        def op(x: Tensor) -> Tensor:
            return x * 2.0
        op.register_fake(lambda x: torch.empty_like(x))
        op.register_autograd(backward)
        results = train(lambda x, w: op(x).mm(w), X, W)
        AGAINST = "cold"
        """,
        [
            edit("manual_seed(3)", "manual_seed(4)"),
            edit("enabled(True)", "enabled(False)"),
            edit("limit = 8", "limit = 9"),
            edit("LEAF * 2.0", "LEAF * 3.0"),
            edit("[1.0 + 2.0j])", "[1.0 + 2.0j]).conj()"),
        ],
        [edit("fast", "quick")],
    ),
    "the compiler's own functions": subject(
        """
        import torch._inductor.compile_fx as compile_fx
        BY = 2.0
        passes = compile_fx.joint_graph_passes
        def mine(graph, *args, **kwargs):
            for node in graph.graph.nodes:
                if node.target is torch.ops.aten.asinh.default:
                    node.target, node.args = torch.ops.aten.mul.Tensor, (node.args[0], BY)
            return passes(graph, *args, **kwargs)
        compile_fx.joint_graph_passes = mine
        def f(x, w):
            return torch.asinh(x) + w
        results = infer(f, X, W)
        MODE = "default"
        AGAINST = "cold"
        """,
        [edit("BY = 2.0", "BY = 3.0"), edit("compile_fx.joint_graph_passes = mine", "")],
        [edit("mine", "ours")],
    ),
    "under autocast": subject(
        """
        def results(compile):
            f = compile(lambda x, w: x.mm(w) + 1)
            with torch.autocast("cpu", torch.bfloat16):
                return train(lambda x, w: f(x, w), X, W)(lambda g: g)
        AGAINST = "cold"
        """,
        [edit("bfloat16", "float16"), edit('autocast("cpu", torch.bfloat16)', "enable_grad()")],
    ),
    "autocast without a dtype": subject(
        """
        torch.set_autocast_dtype("cpu", torch.bfloat16)
        def f(x, w):
            with torch.autocast("cpu"):
                return x.mm(w) + 1
        results = train(f, X, W)
        AGAINST = "cold"
        """,
        [edit("bfloat16", "float16")],
    ),
    "default dtype": subject(
        """
        MODE = "default"  # the only one whose code has a dtype where the program names none
        torch.set_default_dtype(torch.float32)
        def f(x):
            return torch.full((4,), 1.5) + torch.arange(4) / 3, x + 1
        results = infer(f, torch.ones(4, dtype=torch.int64))
        """,
        [edit("dtype(torch.float32)", "dtype(torch.float64)")],
    ),
    "lowering of the user's": subject(
        """
        MODE = "default"
        from torch._inductor import lowering
        BY = 2
        def lower(x):
            return lowering.lowerings[torch.ops.aten.mul.Tensor](x, BY)
        getattr(lowering, "user_lowerings", lowering.lowerings)[torch.ops.aten.asinh.default] = lower
        results = infer(lambda x, w: torch.asinh(x) + w, X, W)
        AGAINST = "cold"
        """,
        [edit("BY = 2", "BY = 3")],
        [edit("BY", "FACTOR")],
    ),
    "what code runs into": subject(
        """
        import collections.abc, copy, copyreg, dataclasses, enum, warnings
        import torch.distributed as dist
        from torch._subclasses.fake_tensor import unset_fake_temporarily
        from torch.distributions import Normal, kl_divergence, register_kl
        from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
        from torch.testing._internal.distributed.fake_pg import FakeStore
        dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
        torch.manual_seed(3)
        torch.set_autocast_dtype("cpu", torch.bfloat16)
        BY = HOOKED = KL = 2.0
        ONES = torch.ones(4)
        ONES._scale = 2.0
        LINEAR = torch.nn.Linear(4, 4)
        GRAPH = torch.fx.symbolic_trace(lambda x: x * 1)
        GRAPH.register_forward_hook(lambda module, inputs, output: output * HOOKED)
        torch.nn.modules.module.register_module_forward_hook(lambda module, inputs, output: output * BY)

        class Mine(Normal):
            pass

        @register_kl(Mine, Mine)
        def divergence(p, q):
            return torch.tensor(KL)

        class Kind(enum.Enum):
            SUM = 1

        @dataclasses.dataclass
        class Row:
            pass

        class Box:
            by = 2.0

        def made():
            box = Box()
            box.by = 4.0
            return box

        def kind():
            pass

        copyreg.pickle(Box, lambda box: (made, ()))
        collections.abc.Sized.register(Box)
        warnings.filterwarnings("ignore", message="mine")
        BOX, MEMBER, ROW, CHOICE = Box(), Kind.SUM, Row(), kind

        def told():
            try:
                warnings.warn("mine")
                found = 1.0
            except Warning:
                found = 2.0
            with unset_fake_temporarily(), disable_proxy_modes_tracing(), torch.no_grad():
                found += torch.rand(1).item() + GRAPH(ONES).sum().item() + LINEAR(ONES).sum().item()
                found += kl_divergence(Mine(0.0, 1.0), Mine(1.0, 1.0)).item()
            found += ONES._scale + copy.copy(BOX).by + isinstance(BOX, collections.abc.Sized)
            found += (str(MEMBER) == "Kind.SUM") + (repr(ROW) == "Row()") + ("kind" in f"{CHOICE}")
            found += torch.get_autocast_dtype("cpu") == torch.bfloat16
            return found / dist.get_world_size() + dist.get_rank()

        @torch.library.custom_op("mylib::op", mutates_args=())
        def op(x: Tensor) -> Tensor:
            return x * 2

        @op.register_fake
        def _(x):
            return torch.empty_like(x)

        op.register_autograd(lambda ctx, g: g * told())
        results = train(lambda x, w: op(x).mm(w), X, W)
        AGAINST = "cold"
        """,
        [
            edit("world_size=2", "world_size=4"),
            edit("manual_seed(3)", "manual_seed(4)"),
            edit('"cpu", torch.bfloat16)', '"cpu", torch.float16)'),
            edit("ONES._scale = 2.0", "ONES._scale = 3.0"),
            edit("output * HOOKED", "output * HOOKED * 2"),
            edit("output * BY", "output * BY * 2"),
            edit("Kind", "Sort", '"Sort.SUM"', '"Kind.SUM"'),
            edit("def kind", "def sort", "Row(), kind", "Row(), sort"),
            edit("box.by = 4.0", "box.by = 5.0"),
            edit("collections.abc.Sized.register(Box)", ""),
            edit('"ignore", message', '"error", message'),
        ],
        [edit("CHOICE", "CHOSEN"), edit("def told():", "def told():\n    # all of it\n")],
        alike=[
            edit("rank=0", "rank=1"),
            edit("Row", "Line", '"Line()"', '"Row()"'),
            edit("torch.tensor(KL)", "torch.tensor(KL * 2)"),
        ],
    ),
    "flags by which torch chooses operators": subject(
        """
        from torch.nn.attention import SDPBackend, sdpa_kernel
        CHOSEN = [SDPBackend.MATH]
        torch.backends.mha.set_fastpath_enabled(True)
        def results(compile):
            f = compile(lambda q: torch.nn.functional.scaled_dot_product_attention(q, q, q))
            with sdpa_kernel(CHOSEN):
                return infer(lambda q: f(q), torch.randn(1, 2, 16, 16))(lambda g: g)
        AGAINST = "cold"
        """,
        [
            edit("SDPBackend.MATH]", "SDPBackend.FLASH_ATTENTION]"),
            edit("with sdpa_kernel(CHOSEN):", "if True:"),
            edit("set_fastpath_enabled(True)", "set_fastpath_enabled(False)"),
        ],
        [edit("CHOSEN", "USED")],
    ),
    "what functions of torch's call": subject(
        """\
        results = infer(lambda x: torch.einsum("ij,jk->ik", x, x) + 1, X)
        """,
        [edit("results =", "torch.functional._VF.einsum = lambda e, o, path=None: o[0] * 3\nresults =")],
    ),
    "what was taken back": subject(
        """
        lib = torch.library.Library("aten", "IMPL")
        lib.impl("asinh", lambda x: x * 2, "Autograd")
        ACOSH = torch.ops.aten.acosh.default
        @ACOSH.py_impl(torch._C.DispatchKey.Autograd)
        def acosh(x):
            return x * 3
        # now
        results = infer(lambda x, w: torch.asinh(x) + torch.acosh(x + 9), X, W)
        AGAINST = "cold"
        """,
        [
            edit("# now", "lib._destroy()"),
            edit("# now", "ACOSH.py_kernels.clear(); ACOSH._dispatch_cache.clear()"),
        ],
        [edit("# now", "# then")],
    ),
    "methods and other callables in torch's compiler": subject(
        """
        MODE = "default"
        import functools
        import torch._inductor.config as config
        from torch._inductor import compile_fx
        from torch._inductor.custom_graph_pass import CustomGraphPass
        from torch._inductor.graph import GraphLowering
        config.fallback_by_default = True
        BY, WITH, SCALE = 2.0, 2.0, 2.0
        method, joint, post = (
            GraphLowering.run, compile_fx.joint_graph_passes, compile_fx._recursive_post_grad_passes
        )

        def scaled(graph, target, by):
            for node in graph.nodes:
                if node.target is target:
                    node.target, node.args = torch.ops.aten.mul.Tensor, (node.args[0], by)

        def run(self, *args):
            scaled(self.module.graph, torch.ops.aten.asinh.default, BY)
            return method(self, *args)

        def joined(by, module, *args, **kwargs):
            scaled(module.graph, torch.ops.aten.acosh.default, by)
            return joint(module, *args, **kwargs)

        class Mine:
            def __call__(self, module, *args, **kwargs):
                scaled(module.graph, torch.ops.aten.atanh.default, SCALE)
                return post(module, *args, **kwargs)

        class Pass(CustomGraphPass):
            def __init__(self, by):
                self.by = by
            def __call__(self, graph):
                scaled(graph, torch.ops.aten.cosh.default, self.by)
            def uuid(self):
                return "always the same"

        GraphLowering.run = run
        compile_fx.joint_graph_passes = functools.partial(joined, WITH)
        compile_fx._recursive_post_grad_passes = Mine()
        config.post_grad_custom_post_pass = Pass(2.0)
        results = infer(
            lambda x, w: torch.asinh(x) + torch.acosh(x + 9) + torch.atanh(x / 9) + torch.cosh(w), X, W
        )
        AGAINST = "cold"
        """,
        [
            edit("BY, WITH, SCALE = 2.0, 2.0", "BY, WITH, SCALE = 3.0, 2.0"),
            edit("BY, WITH, SCALE = 2.0, 2.0", "BY, WITH, SCALE = 2.0, 3.0"),
            edit("2.0, 2.0, 2.0", "2.0, 2.0, 3.0"),
            edit("Pass(2.0)", "Pass(3.0)"),
        ],
        [edit("scaled", "multiplied")],
    ),
    "what a pass holds": with_passes(
        """
        class Replace(Named):
            def __init__(self, source, target, rest):
                self.source, self.target, self.rest, self.seen = source, target, rest, 0

            def by(self, factor):
                self.factor = factor
                return self

            def __call__(self, graph):
                self.seen += 1
                for node in graph.nodes:
                    if node.target is self.source:
                        node.target = self.target
                    elif node.target is aten.asinh.default:
                        node.target, node.args = aten.mul.Tensor, (node.args[0], self.factor)

        config.post_grad_custom_post_pass = Replace(aten.atan.default, aten.sin.default, None).by(2.0)
        results = infer(lambda x, w: torch.asinh(x).mm(torch.atan(w)), X, W)
        """,
        [
            edit("aten.sin.default", "aten.cos.default"),
            edit("by(2.0)", "by(3.0)"),
            edit("seen = source, target, rest, 0", "seen = source, target, rest, 1"),
            edit("None", "torch.zeros(1000, 1000)", "by(2.0)", "by(3.0)"),
        ],
        [edit("node", "each")],
    ),
    "passes of patterns": with_passes(
        """
        from torch._inductor.pattern_matcher import Arg, CallFunction, PatternMatcherPass
        from torch._inductor.pattern_matcher import register_graph_pattern
        A, B = PatternMatcherPass(), PatternMatcherPass()

        def rewrite(match, x, by):
            with match.graph.inserting_before(match.output_node()):
                made = match.graph.call_function(aten.mul.Tensor, (x, by))
                made.meta["val"] = match.output_node().meta["val"]
                match.output_node().replace_all_uses_with(made)
                match.erase_nodes()

        @register_graph_pattern(CallFunction(aten.asinh.default, Arg()), pass_dict=A)
        def first(match, x):
            rewrite(match, x, 2.0)

        @register_graph_pattern(CallFunction(aten.asinh.default, Arg()), pass_dict=B)
        def second(match, x):
            rewrite(match, x, 3.0)

        class Patterns:
            def __init__(self, by):
                self.by = by

            def apply(self, graph):
                for node in graph.nodes:
                    if node.target is aten.atan.default:
                        node.target, node.args = aten.mul.Tensor, (node.args[0], self.by)

        class Pass(Named):
            def __init__(self, *patterns):
                self.patterns = patterns

            def __call__(self, graph):
                for each in self.patterns:
                    each.apply(graph)

        Patterns.__name__ = Patterns.__qualname__ = "PatternMatcherPass"
        config.post_grad_custom_post_pass = Pass(A, Patterns(2.0))
        results = infer(lambda x, w: torch.asinh(x).mm(torch.atan(w)), X, W)
        """,
        [
            edit("Pass(A, ", "Pass(B, "),
            edit("Pass(A, ", "Pass(B, A, "),
            edit("Patterns(2.0)", "Patterns(3.0)"),
        ],
        [edit("made", "product")],
    ),
    "where nodes come from": with_passes(
        """
        from torch.fx.passes.utils.source_matcher_utils import get_source_partitions

        class Pass(Named):
            def __call__(self, graph):
                for node in graph.nodes:
                    if node.target is aten.atan.default and "exact" not in (node.stack_trace or ""):
                        node.target = aten.sin.default
                for parts in get_source_partitions(graph, [torch.asinh]).values():
                    for node in (node for part in parts for node in part.nodes):
                        node.target = aten.sin.default

        config.post_grad_custom_post_pass = Pass()
        def f(x, w):
            y = torch.asinh(x)
            z = torch.atan(w)
            return y.mm(z)
        results = infer(f, X, W)
        """,
        [
            edit("torch.atan(w)", "torch.atan(w)  # exact"),
            edit("torch.asinh(x)", "torch.arcsinh(x)"),
            edit("torch.asinh(x)", "x.asinh()"),
        ],
    ),
    "a backward that is compiled later": with_passes(
        """
        class Pass(Named):
            def __call__(self, graph):
                for node in graph.nodes:
                    if node.target is aten.cos.default:
                        node.target = aten.sin.default

        def results(compile):
            x = X.clone().requires_grad_()
            with config.patch(post_grad_custom_post_pass=Pass()):
                y = compile(lambda x: x.sin() * 2)(x).sum()
            y.backward()
            return [y.detach(), x.grad]
        """,
        [edit("    y.backward()", "        y.backward()")],
    ),
    "a backward that is compiled with other settings": subject(
        """
        MODE = "default"
        AGAINST = "cold"
        OF_RELU = "accuracy"
        def results(compile):
            x = torch.ones(4, requires_grad=True)
            found = compile(lambda x: torch.relu(x).sin())(x)
            torch._inductor.config.cpp.inject_relu_bug_TESTING_ONLY = OF_RELU
            found.sum().backward()
            return [found.detach(), x.grad]
        """,
        [edit('"accuracy"', "None")],
    ),
    "what a backward may write to": subject(
        """
        MODE = "default"
        AGAINST = "cold"
        LARGE = torch.randn(64, 64)
        def f(x, w):
            found = x @ w
            loss = found.tanh().sum()
            return (loss,)
        def results(compile):
            x, w = LARGE.clone().requires_grad_(), LARGE.clone().requires_grad_()
            found = compile(f)(x, w)
            found[0].backward()
            return [each.detach() for each in (*found, x.grad)]
        """,
        [
            edit("(loss,)", "loss, found.detach()"),
            edit("found[0].backward()", "found[0].backward(retain_graph=True)\n    found[0].backward()"),
        ],
        [edit("found = x @ w", "found = x @ w  # logits")],
    ),
    "graphs that are kept": subject(
        """
        def f(x):
            return (x @ x).tanh().sum()
        def results(compile):
            x = X.clone().requires_grad_()
            loss = compile(f)(x)
            loss.backward()
            return [loss.detach(), x.grad.detach()]
        """,
        [
            edit("loss.backward()", "loss.backward(retain_graph=True)\n    loss.backward()"),
            edit("loss.backward()", "x.grad, = torch.autograd.grad(loss, x, create_graph=True)"),
        ],
    ),
    "what torch unpickles": subject(
        """
        MODE = "default"  # lite compiles no regions
        @torch.compiler.nested_compile_region
        def region(x):
            return x.tanh() * 2
        def results(compile):
            x = X.clone().requires_grad_()
            found = compile(lambda x: region(region(x)) + 1)(x)
            found.sum().backward()
            return [found.detach(), x.grad, compile(lambda x: x.sin())(X)]
        """,
        [edit("tanh() * 2", "tanh() * 3")],
        [edit("region(region(x))", "region( region(x))")],
    ),
    "frozen parameters": subject(
        """
        AGAINST = "cold"
        torch._inductor.config.freezing = True
        SCALE = 2.0
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = torch.nn.Parameter(torch.tensor(SCALE))
                self.one = torch.nn.Parameter(torch.ones(12))
                self.other = torch.nn.Parameter(torch.full((12,), 2.0))
                self.other.data = self.one.data
            def forward(self, x):
                return self.other * (self.one * x).sin() * self.scale
        model = Model().eval()
        results = infer(model, torch.ones(12))
        """,
        [edit("SCALE = 2.0", "SCALE = 3.0"), edit("self.other.data = self.one.data", "pass")],
        [edit("model", "network")],
    ),
    "guards on dynamic sizes": subject(
        """
        LEAST, MOST = 4, 10
        def f(x):
            if x.shape[0] > 3:
                return x * 2
            return x * 2
        def results(compile):
            x = torch.arange(6.0)
            torch._dynamo.mark_dynamic(x, 0, min=LEAST, max=MOST)
            with torch.no_grad():
                return [compile(f)(x)]
        """,
        [edit("10", "100"), edit("LEAST, MOST = 4", "LEAST, MOST = 2", "x.shape[0] > 3", "x.shape[0] > 1")],
        [edit("f", "g")],
    ),
    "what checkpointing keeps": subject(
        """
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils.checkpoint import checkpoint
        AGAINST = "cold"
        BY = 2.0
        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                out = func(*args, **(kwargs or {}))
                return out * BY if func is torch.ops.aten.sin.default else out
        def context_fn():
            return Mode(), Mode()
        context_fn.cache_hash = "always the same"
        def inner(x, w):
            return x.mm(w).sin().sigmoid()
        def f(x, w):
            return checkpoint(inner, x, w, use_reentrant=False, context_fn=context_fn)
        results = train(f, X, W)
        """,
        [edit("BY = 2.0", "BY = 3.0")],
        [edit("out", "found")],
    ),
    "globals that code rebinds, and graphs that it holds": subject(
        """
        A = B = 1.0
        Tensor.taken = lambda self: self * 2.0
        G = torch.fx.symbolic_trace(lambda x: x.taken())
        class Module(torch.fx.GraphModule):
            by = 2.0
            def __call__(self, x):
                return super().__call__(x) * self.by
        H = torch.fx.symbolic_trace(lambda x: x * 1)
        I = Module(H, H.graph)
        H.forward = lambda x: x * 2
        @torch.library.custom_op("mylib::op", mutates_args=())
        def op(x: Tensor) -> Tensor:
            return x * 2
        op.register_fake(lambda x: torch.empty_like(x))
        def backward(ctx, g):
            global A
            A = 5.0
            return g * B * G(torch.ones(1)) * H(torch.ones(1)) * I(torch.ones(1))
        op.register_autograd(backward)
        results = train(lambda x, w: op(x).mm(w), X, W)
        """,
        [
            edit("g * B", "g * A"),
            edit("self * 2.0", "self * 3.0"),
            edit("lambda x: x * 2", "lambda x: x * 3"),
            edit("by = 2.0", "by = 3.0"),
        ],
        [edit("global A", "global A  # here")],
    ),
    "what is said of operators in a graph": subject(
        """
        MODE = "default"
        AGAINST = "cold"
        EAGER = True
        def f(x):
            with torch.fx.traceback.annotate({"fallback_to_eager": EAGER}):
                return torch.nn.functional.dropout(x, 0.5)
        def results(compile):
            torch.manual_seed(0)
            with torch.no_grad():
                return [compile(f)(X)]
        """,
        [edit("EAGER = True", "EAGER = False")],
        [edit("EAGER", "BY_ATEN")],
    ),
    "modules that a backend calls": subject(
        """
        from torch._inductor.compile_fx import compile_fx
        AGAINST = "cold"
        torch._inductor.config.fallback_by_default = True
        def body(x):
            return x.tanh()
        def hook(module, args, found):
            return found * 5.0
        class Extra(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.by = 2.0
                self.act = torch.nn.ReLU()
                self.act.register_forward_hook(hook)
            def forward(self, x):
                return body(x) * self.by + self.act(x)
        def backend(graph, inputs):
            graph.add_submodule("extra", Extra())
            sin, = (node for node in graph.graph.nodes if node.target is torch.sin)
            with graph.graph.inserting_after(sin):
                called = graph.graph.call_module("extra", (sin,))
            sin.replace_all_uses_with(called)
            called.args = (sin,)
            graph.recompile()
            return compile_fx(graph, inputs)
        def results(compile):
            with torch.no_grad():
                return [torch.compile(lambda x, w: torch.sin(x) @ w, backend=backend)(X, W)]
        """,
        [
            edit("x.tanh()", "x.exp()"),
            edit("body(x) *", "body(x) +"),
            edit("self.by = 2.0", "self.by = 3.0"),
            edit("* 5.0", "* 6.0"),
        ],
        [edit("body", "inner")],
    ),
    "how distributed tensors shard": with_mesh(
        """
        from torch.distributed.tensor.experimental import register_sharding
        BY = 3.0
        @torch.library.custom_op("mylib::op", mutates_args=())
        def op(x: Tensor) -> Tensor:
            return x * 2
        op.register_fake(lambda x: torch.empty_like(x))
        @register_sharding(torch.ops.mylib.op.default)
        def strategy(x):
            return [([Shard(0)], [Shard(0)])]
        def handler(operator, args, kwargs):
            x, = args
            return DTensor.from_local(x.to_local().cos() * BY, x.device_mesh, x.placements, run_check=False)
        DTensor._op_dispatcher._custom_op_handlers[torch.ops.aten.sin.default] = handler
        def results(compile):
            x = DTensor.from_local(torch.ones(2, 2), mesh, [Shard(0)], run_check=False)
            with torch.no_grad():
                return [each.to_local() for each in compile(lambda x: (op(x), torch.sin(x)))(x)]
        """,
        [
            edit("[([Shard(0)], [Shard(0)])]", "[([Replicate()], [Replicate()])]"),
            edit("BY = 3.0", "BY = 4.0"),
            edit(".cos()", ".tanh()"),
        ],
        [edit("strategy", "rule"), edit("BY", "FACTOR")],
    ),
    "placements of distributed tensors": with_mesh(
        """
        class Given(Partial):
            def _reduce_value(self, tensor, mesh, mesh_dim):
                return tensor * 2.0
        class Made(Partial):
            def _reduce_value(self, tensor, mesh, mesh_dim):
                return tensor * 3.0
        def mine(self, local, *args):
            return torch.cat([local, local * 5.0])
        Shard._to_replicate_tensor = mine
        def f(x, y, z):
            made = DTensor.from_local(z, mesh, [Made("sum")], run_check=False)
            return [each.redistribute(mesh, [Replicate()]) for each in (x, y, made)]
        def results(compile):
            ones = torch.ones(2, 2)
            x = DTensor.from_local(ones, mesh, [Given("sum")], run_check=False)
            y = DTensor.from_local(ones, mesh, [Shard(0)], run_check=False)
            with torch.no_grad():
                return [each.to_local() for each in compile(f)(x, y, ones)]
        """,
        [edit("* 2.0", "* 4.0"), edit("* 3.0", "* 4.0"), edit("* 5.0", "* 6.0")],
        [edit("f", "g")],
    ),
    "nothing of it": subject(
        """
        K = 2
        def helper(x):
            return x.mm(x)
        def f(x, w):
            return helper(x).mm(w) * K
        results = train(f, X, W)
        """,
        [edit("K = 2", "K = 3"), edit("x.mm(x)", "x.mm(x.t())")],
        [
            edit("helper", "assistant"),
            edit("K", "Q"),
            edit("def f(x, w):", "def f(x, w):\n    # both\n"),
            edit("def f(x, w):", "def f(x, w):\n    'Both.'"),
            edit("K = 2", "OTHER = 3\nK = 2"),
            edit(
                "K = 2",
                "@torch.library.custom_op('mylib::other', mutates_args=())\n"
                "def other(x: Tensor) -> Tensor:\n    return x\nK = 2",
            ),
        ],
    ),
}

RARE = {
    "a class that says it is the standard library's": "torch_dispatch",
    "aten in Python": "aten",
    "attributes of torch's": "methods of torch's in any graph",
    "autocast without a dtype": "under autocast",
    "composition": "decomposition",
    "function as a pass": "pass",
    "globals that code rebinds, and graphs that it holds": "graphs that are kept",
    "leaves before": "leaves",
    "leaves beside shared memory": "leaves",
    "modules that a backend calls": "the compiler's own functions",
    "passes of patterns": "pattern",
    "placements of distributed tensors": "how distributed tensors shard",
    "shared memory before": "shared memory",
    "what code runs into": "unknown",
}
"""Subjects that `make test-all` alone runs, each with the one that stands for it otherwise."""
