# edit: k = 2.0 => k = 3.0
# edit: w.triu() => w.tril()
# insert: nn.utils.parametrize.register_parametrization(m, 'weight', Sym())
nn = torch.nn
class Sym(nn.Module):
    k = 2.0
    def forward(s, w): return w.triu() * s.k
m = nn.Linear(4, 4)
nn.utils.parametrize.register_parametrization(m, "weight", Sym())
def f(x): return m(x)
