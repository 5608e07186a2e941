# insert: torch.backends.cuda.matmul.allow_tf32 = True
# insert: torch.set_autocast_enabled('cpu', True)
def f(x): return x * (2 if torch._C._get_cublas_allow_tf32() else 3) + (1 if torch._C._is_any_autocast_enabled() else 5)
