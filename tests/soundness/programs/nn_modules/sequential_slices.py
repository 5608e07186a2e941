# edit: A, B = 0, 2 => A, B = 1, 2
# insert: del m[0]
# insert: m.append(nn.ReLU())
nn = torch.nn
m = nn.Sequential(nn.ReLU(), nn.Tanh(), nn.Sigmoid(), nn.Softplus())
def f(x): return m[A:B](x) + m[-1](x) + len(m)
A, B = 0, 2
