# edit: "a": nn.ReLU(), "b": nn.Tanh() => "b": nn.Tanh(), "a": nn.ReLU()
# edit: torch.ones(4)), nn.Parameter(torch.ones(1)) => torch.ones(1)), nn.Parameter(torch.ones(4))
# insert: m.d['y'] = nn.Sigmoid()
nn = torch.nn
class A(nn.Module):
    def __init__(s):
        super().__init__()
        s.d = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Tanh()})
        s.l = nn.ParameterList([nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(1))])
        s.p = nn.ParameterDict({"x": nn.Parameter(torch.ones(4)), "y": nn.Parameter(torch.zeros(4))})
    def forward(s, x):
        for k, m in s.d.items(): x = m(x) + len(k)
        for p in s.l: x = x * 2 + p * p.numel()
        return x + s.p["x"] * len(s.p) + ("y" in s.d)
m = A()
results = infer(m, X)
