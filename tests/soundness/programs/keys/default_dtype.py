# edit: dtype(torch.float32) => dtype(torch.float64)
MODE = "default"  # the only one whose code has a dtype where the program names none
torch.set_default_dtype(torch.float32)
def f(x):
    return torch.full((4,), 1.5) + torch.arange(4) / 3, x + 1
results = infer(f, torch.ones(4, dtype=torch.int64))
