# edit: 3, 6 => 5, 6
# edit: 3, 6 => 3, 8
# edit: 3, 6 => 4, 10
def f(x, k):
    return x + math.comb(k, 2)
def g(x):
    return len(x.split(2)) + math.comb(len(x), 2) + x
def results(compile):
    with torch.no_grad():
        return [compile(f, fullgraph=True)(X, K), compile(g, fullgraph=True)(torch.ones(ROWS, 2))]
# %%
K, ROWS = 3, 6
