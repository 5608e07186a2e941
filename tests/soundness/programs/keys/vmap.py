# edit: torch.ops.mylib.op(x) * 1 => torch.ops.mylib.op(x) * 2
# edit: torch.ops.mylib.op(x) * 1 => torch.ops.mylib.op(x + 1)
# same: rule => batched
# after: operator
def rule(info, in_dims, x):
    return torch.ops.mylib.op(x) * 1, in_dims[0]
op.register_vmap(rule)
def f(x, w):
    return torch.vmap(op)(x).mm(w)
