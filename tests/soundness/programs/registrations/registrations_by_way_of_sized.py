# insert: collections.abc.Sequence.register(Other)\nOther.register(Th)
# insert: collections.abc.MutableSequence.register(Other)\nOther.register(Th)
import abc, collections.abc
class Other(abc.ABC): pass
class Th: pass
th = Th()
def f(x): return x * 2 if isinstance(th, collections.abc.Sequence) else x * 3
