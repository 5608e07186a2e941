# edit: LazyLinear(4) => LazyLinear(5)
# edit: LazyLinear(4) => LazyLinear(4, bias=False)
#  and: m.bias.fill_(1.0)\n =>
nn = torch.nn
m = nn.LazyLinear(4)
m(X)
m.requires_grad_(False).weight.fill_(0.5)
m.bias.fill_(1.0)
def f(x): return m(x)
