# insert: m[0].compile()\nm[0].forward = lambda x: x * 7
# insert: m[1]._call_impl = lambda x: x * 5
nn = torch.nn
m = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
def f(x): return m(x) + m[0](x)
