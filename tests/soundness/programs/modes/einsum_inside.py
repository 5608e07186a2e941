# insert: torch.functional._VF.einsum = lambda e, o: o[0] * 3
# insert: torch.einsum = lambda e, a, b: a * 3
def f(x, w): return torch.einsum("ij,jk->ik", x, w)
