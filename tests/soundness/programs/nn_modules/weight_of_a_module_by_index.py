# edit: AT = 1 => AT = 2
# edit: (2, 3, 4) => (3, 2, 4)
# edit: AT = 1 => AT = -1
# same: torch.manual_seed(0) => torch.manual_seed(3)
nn = torch.nn
m = nn.ModuleList([nn.Linear(4, n, bias=False) for n in (2, 3, 4)])
def f(x):
    for i, each in enumerate(m):
        y = each(x)
        x = x + y.sum() * each.out_features * (1 if each.bias is None else 2)
    return x * m[AT].weight.shape[0]
AT = 1
