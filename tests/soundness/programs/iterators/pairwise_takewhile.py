# edit: [1, 3, 2, 5] => [1, 2, 3, 5]
# edit: LIMIT = 3 => LIMIT = 6
# edit: v < LIMIT => v > LIMIT
import itertools
L = [1, 3, 2, 5]
LIMIT = 3
def small(v): return v < LIMIT
def f(x):
    for a, b in itertools.pairwise(L): x = x * 2 + (a - b)
    for v in itertools.takewhile(small, L): x = x + v
    for v in itertools.filterfalse(small, L): x = x * v
    for k, g in itertools.groupby(L, key=lambda v: v % 2): x = x + k * len(list(g))
    return x
