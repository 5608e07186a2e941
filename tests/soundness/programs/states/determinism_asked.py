# insert: torch.set_deterministic_debug_mode(1)
# insert: torch.set_deterministic_debug_mode('error')
def f(x): return x * (1 + torch.get_deterministic_debug_mode()) + torch.are_deterministic_algorithms_enabled()
