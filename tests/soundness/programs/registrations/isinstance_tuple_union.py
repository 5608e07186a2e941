# insert: numbers.Number.register(Num)
# insert: numbers.Complex.register(Num)
# edit: __len__ => __lenn__
import numbers, collections.abc
class Num: pass
class L:
    def __len__(s): return 1
n, l = Num(), L()
def f(x):
    x = x * 2 if isinstance(n, (numbers.Number, int)) else x * 3
    return x + 1 if isinstance(l, collections.abc.Sized) else x + 5
