# insert: torch.set_num_threads(7)
def f(x): return x * torch.get_num_threads()
