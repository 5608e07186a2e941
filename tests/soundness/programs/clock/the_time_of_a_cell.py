import time
NOW = float(time.time_ns() % 10**6 + 1)
def f(x): return x * NOW
def results(compile):
    with torch.no_grad(): return [compile(f)(X) - X * NOW]
