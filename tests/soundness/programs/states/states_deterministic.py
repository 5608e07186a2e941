# insert: torch.use_deterministic_algorithms(True)
# insert: torch.use_deterministic_algorithms(True, warn_only=True)
def f(x):
    x = x * 2 if torch.are_deterministic_algorithms_enabled() else x * 3
    return x + 1 if torch.is_deterministic_algorithms_warn_only_enabled() else x
