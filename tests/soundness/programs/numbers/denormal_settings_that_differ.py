# insert: torch.set_flush_denormal(True)
K = 5e-324
CONF = {"tiny": 2e-308}
def f(x):
    x = x + 1 if K > 0 else x + 2
    return x * (2 if CONF["tiny"] / 4 != 0 else 3) + float("1e-310").hex().count("0")
