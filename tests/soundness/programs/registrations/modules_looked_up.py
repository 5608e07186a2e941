# edit: nn.Tanh() => nn.Sigmoid()
# edit: k = 2.0 => k = 3.0
# edit: nn.Linear(4, 4) => nn.Linear(4, 5)
nn = torch.nn
class Top(nn.Module):
    def __init__(s):
        super().__init__()
        s.mid = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        s.mid.k = 2.0
    def forward(s, x):
        x = s.get_submodule("mid.1")(x) * s.get_parameter("mid.0.weight").shape[0]
        return x * s.mid.k + sum(p.numel() for p in s.parameters()) + len(list(s.buffers())) + len(s.state_dict())
m = Top()
results = infer(m, X)
