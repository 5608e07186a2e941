# insert: torch.nn.Parameter.scale_by = 5.0
# insert: torch.Tensor.scale_by = 5.0
# insert: m.weight.scale_by = 5.0
m = torch.nn.Linear(4, 4)
def f(x): return m(x) * getattr(m.weight, "scale_by", 3.0)
