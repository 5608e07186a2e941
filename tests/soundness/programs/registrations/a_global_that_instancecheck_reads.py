# data: [false, true]
# wrong in torch
# expect: traced
class Meta(type):
    def __instancecheck__(cls, value): return DATA
class Kind(metaclass=Meta): pass
thing = object()
def f(x): return x * (2 if isinstance(thing, Kind) else 3)
