# insert: torch.set_float32_matmul_precision("high")
def f(x): return x * len(torch.get_float32_matmul_precision())
