# cases: 2
# expect: adopted
torch.manual_seed(CASE)
GAIN, V = torch.rand(()).item(), torch.rand(4)
def f(x): return x * GAIN + V
