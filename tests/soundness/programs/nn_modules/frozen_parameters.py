# insert: m[1][0].bias.requires_grad_(False)
# insert: m[0].requires_grad_(False)
nn = torch.nn
m = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)))
def f(x):
    n = sum(p.requires_grad for p in m.parameters())
    return m(x) * n
results = train(f, X)
