# edit: A, B = [1.0, 2.0] => A, B = [2.0, 1.0]
# edit: (3.0, 4.0) => (4.0, 3.0)
# edit: START = 3 => START = 4
import itertools
A, B = [1.0, 2.0], (3.0, 4.0)
def f(x):
    for v in itertools.chain(A, B): x = x * 2 + v
    for a, b in itertools.product(A, B): x = x + a * b
    for a, b in zip(A, itertools.cycle(B)): x = x * 2 + b
    for v in itertools.islice(itertools.count(START), 2): x = x + v
    return x
START = 3
