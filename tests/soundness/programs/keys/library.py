# edit: return g * 2 => return g * 3
# edit: lambda x: Scaled.apply(x) => lambda x: Scaled.apply(x) * 1.5
#  and: def f( => AGAINST = "cold"\ndef f(
# edit: return x.mm(x) => return x.mm(x.t())
# edit: impl("composite", composite, => impl("composite", functools.partial(torch.mul, 3.0),
# edit: lambda x: x * 2 => lambda x: (x * 2).double()
#  and: torch.empty_like(x) => torch.empty_like(x, dtype=torch.float64)
#  and: .mm(ops.composite(w)) => .mm(ops.composite(w).double())
# edit: x.new_ones(4, 4) => x.new_ones(4, 4, dtype=torch.int64)
# same: lambda x: x * 2 => lambda x: x + x
# same: Scaled => Doubled
# same: def inner => def inmost
#  and: inner(x) => inmost(x)
# same: torch.empty_like(x) => torch.empty_like(  # a shape\nx)
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
