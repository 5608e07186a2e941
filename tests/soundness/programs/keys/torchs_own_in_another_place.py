# edit: x.sin() => x.cos()
#  and: ops.sin) => ops.cos)
# edit: lowerings[torch.ops.aten.sin.default] => lowerings[torch.ops.aten.cos.default]
# edit: other=2.0 => other=3.0
# edit: functools.partial(torch.mul, other=2.0) => torch.cos
# edit: decompositions[torch.ops.aten.mish.default] = functools.partial(torch.mul, other=2.0) =>
# edit: BY = "2.0f" => BY = "3.0f"
# same: BY => FACTOR
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
