# insert: torch.norm = lambda x: x * 2
def f(x): return torch.norm(x) + torch.split(x, 2)[0].sum() + torch.meshgrid(x[0], x[1], indexing="ij")[0].sum()
