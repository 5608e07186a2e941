# insert: torch.functional._VF.einsum = lambda e, o, path=None: o[0] * 3
results = infer(lambda x: torch.einsum("ij,jk->ik", x, x) + 1, X)
