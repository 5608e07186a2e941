# data: [[4], [1], [4, 4]]
# expect: adopted
Y = torch.ones(*DATA)
def f(x): return x + Y * Y.shape[-1]
