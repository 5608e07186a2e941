# cases: 1
torch.set_num_threads(1 + CASE)
def f(x): return x * torch.get_num_threads()
