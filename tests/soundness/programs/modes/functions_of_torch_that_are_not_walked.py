# insert: torch.functional._VF.cdist = lambda x, *a: x * 3
# insert: torch.functional._VF.atleast_2d = lambda x, *a: x * 3
# insert: torch.block_diag = lambda a, b: 7.0
def f(x):
    y = torch.cdist(x, x) + torch.block_diag(x[:2, :2], x[2:, 2:])
    a, b = torch.broadcast_tensors(x, x[:1])
    return y + a * b + torch.atleast_2d(x)
