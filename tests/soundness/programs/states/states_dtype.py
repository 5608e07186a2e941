# insert: torch.set_default_dtype(torch.float64)
def f(x):
    x = x * torch.finfo(torch.get_default_dtype()).bits
    return x + torch.tensor(2.0).element_size() + torch.empty(1).element_size()
