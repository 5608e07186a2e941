# edit: torch.ops.mylib.op(x) * 1 => torch.ops.mylib.op(x) * 2
# edit: torch.ops.mylib.op(x) * 1 => torch.ops.mylib.op(x + 1)
# same: rule => batched
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
