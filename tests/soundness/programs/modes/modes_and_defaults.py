# insert: torch.set_default_dtype(torch.float64)
# insert: torch.set_default_dtype(torch.bfloat16)
# insert: torch.set_default_tensor_type(torch.DoubleTensor)
def f(x):
    y = torch.arange(4) * 1.5 + torch.full((4,), 2.0) + torch.linspace(0, 1, 4)
    return (x + y) * y.element_size()
