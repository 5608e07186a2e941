# edit: nn.ReLU() => nn.Linear(4, 5)
# edit: s.inner => s.innermost
# insert: m.inner[0].register_parameter('k', nn.Parameter(torch.ones(3)))
nn = torch.nn
class A(nn.Module):
    def __init__(s):
        super().__init__()
        s.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    def forward(s, x):
        for n, p in s.named_parameters(): x = x * len(n) + p.numel()
        return x
m = A()
results = infer(m, X)
