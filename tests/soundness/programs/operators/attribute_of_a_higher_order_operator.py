# insert: op.flag = 2.0
op = torch.ops.higher_order.cond
def f(x): return x * 2 if hasattr(op, "flag") else x * 3
