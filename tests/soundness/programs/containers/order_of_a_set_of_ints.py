# edit: [0, 8] => [8, 0]
# edit: [1, 9] => [9, 1]
S = set([0, 8])
FS = frozenset([1, 9])
def f(x):
    for v in S: x = x * 2 + v
    for v in FS: x = x * 2 + v
    return x
