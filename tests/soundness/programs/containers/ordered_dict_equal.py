# edit: B = OrderedDict(a=1, b=2) => B = OrderedDict(b=2, a=1)
# edit: B = OrderedDict(a=1, b=2) => B = dict(b=3, a=1)
from collections import OrderedDict
A = OrderedDict(a=1, b=2)
B = OrderedDict(a=1, b=2)
def f(x): return x * 2 if A == B else x * 3
