# edit:         s.b.weight = s.a.weight\n =>
# expect: adopted
nn = torch.nn
class Tied(nn.Module):
    def __init__(s):
        super().__init__()
        s.a = nn.Linear(4, 4, bias=False)
        s.b = nn.Linear(4, 4, bias=False)
        s.b.weight = s.a.weight
    def forward(s, x): return s.b(s.a(x))
results = train(Tied(), X)
