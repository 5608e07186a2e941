# insert: torch.set_autocast_dtype('cpu', torch.float16)
# insert: torch.set_autocast_cache_enabled(False)
def f(x): return x * (2 if torch.get_autocast_dtype("cpu") is torch.bfloat16 else 3) + torch.is_autocast_cache_enabled()
