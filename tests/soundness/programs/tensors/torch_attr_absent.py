# insert: torch.nbcache_fast_op = torch.sin
def f(x):
    try: return torch.nbcache_fast_op(x)
    except AttributeError: return x * 3
