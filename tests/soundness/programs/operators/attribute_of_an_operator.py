# insert: op.flag = 2.0
op = torch.ops.aten.sin.default
def f(x): return op(x) * getattr(op, "flag", 3.0)
