# insert: torch.set_warn_always(True)
def f(x): return x * 2 if torch.is_warn_always_enabled() else x * 3
