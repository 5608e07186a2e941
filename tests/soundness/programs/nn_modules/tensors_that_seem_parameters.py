# insert: T._is_param = True
# insert: T._is_buffer = True
# insert: T = torch.nn.Parameter(T)
T = torch.ones(4)
def f(x): return x * 2 if isinstance(T, torch.nn.Parameter) else x * 3 + isinstance(T, torch.nn.Buffer)
