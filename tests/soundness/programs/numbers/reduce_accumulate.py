# edit: OP = operator.add => OP = operator.mul
# edit: OP = operator.add => OP = lambda a, b: a - b
# edit: 2.0, 3.0 => 2.0, 4.0
import itertools, operator
L = [1.0, 2.0, 3.0]
OP = operator.add
def f(x):
    x = x * functools.reduce(OP, L, 1.0)
    for v in itertools.accumulate(L, OP): x = x + v
    return x
