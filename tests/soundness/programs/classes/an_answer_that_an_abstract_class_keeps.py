# cases: 2
# expect: adopted
import collections.abc
class Batch:
    def __iter__(self): return iter((1.0, 2.0))
class Loader: pass
batch, loader = Batch(), Loader()
if CASE == 1: isinstance(batch, collections.abc.Iterable)
if CASE == 2: isinstance(loader, collections.abc.Sized)
# %%
del Batch.__iter__
Loader.__len__ = lambda self: 4
def f(x):
    x = x * 2 if isinstance(batch, collections.abc.Iterable) else x * 3
    return x * len(loader) if isinstance(loader, collections.abc.Sized) else x * 5
