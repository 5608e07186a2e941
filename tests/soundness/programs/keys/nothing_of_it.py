# edit: K = 2 => K = 3
# edit: x.mm(x) => x.mm(x.t())
# same: helper => assistant
# same: K => Q
# same: def f(x, w): => def f(x, w):\n    # both\n
# same: def f(x, w): => def f(x, w):\n    'Both.'
K = 2
def helper(x):
    return x.mm(x)
def f(x, w):
    return helper(x).mm(w) * K
results = train(f, X, W)
