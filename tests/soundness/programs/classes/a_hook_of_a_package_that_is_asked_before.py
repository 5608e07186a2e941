# after: packages
# cases: 1
# expect: traced
import os
install(1, """
import abc, collections.abc, os
class Scaled(abc.ABC):
    @classmethod
    def __subclasshook__(cls, other): return os.environ["SCALED"] == other.__name__
class Batched(collections.abc.Iterable):
    @classmethod
    def __subclasshook__(cls, other): return os.environ["SCALED"] == other.__name__
""")
os.environ["SCALED"] = ("Net", "")[CASE]
import installed
class Net:
    def __iter__(self): return iter(())
net = Net()
kept = isinstance(net, installed.Scaled), isinstance(net, installed.Batched)
# %%
def f(x):
    x = x * 5 if isinstance(net, installed.Scaled) else x * 3
    return x + 1 if isinstance(net, installed.Batched) else x
