# insert: m.a.forward = lambda x: x * 9
# insert: m.a.forward = types.MethodType(B.forward, m.a)
# insert: m.a.__class__ = B
nn = torch.nn
class A(nn.Module):
    def forward(s, x): return x * 2
class B(nn.Module):
    def forward(s, x): return x * 3
class Top(nn.Module):
    def __init__(s): super().__init__(); s.a = A()
    def forward(s, x): return s.a(x) + 1
m = Top()
results = infer(m, X)
