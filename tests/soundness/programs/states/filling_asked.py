# insert: torch.utils.deterministic.fill_uninitialized_memory = False
def f(x): return x * 2 if torch.utils.deterministic.fill_uninitialized_memory else x * 3
