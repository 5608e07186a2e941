# insert: nn.utils.parametrize.remove_parametrizations(m, 'weight')\nm.weight.data.mul_(2)
# edit: parametrizations.weight_norm(nn.Linear(4, 4), dim=0) => parametrizations.orthogonal(nn.Linear(4, 4))
nn = torch.nn
m = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4), dim=0)
def f(x): return m(x)
