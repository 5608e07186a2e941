# edit: K, N = 1.0, 4 => K, N = 2.0, 4
# edit: K, N = 1.0, 4 => K, N = 1.0, 5
# insert: odd = lambda x, n: x * 50
def even(x, n): return x if n == 0 else odd(x * 2, n - 1)
def odd(x, n): return x if n == 0 else even(x + K, n - 1)
K, N = 1.0, 4
def f(x): return even(x, N)
