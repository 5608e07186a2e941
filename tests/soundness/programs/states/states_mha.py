# insert: torch.backends.mha.set_fastpath_enabled(False)
def f(x): return x * 2 if torch.backends.mha.get_fastpath_enabled() else x * 3
