# edit: BY = 2.0 => BY = 3.0
# edit: fn(*args) * BY => fn(*args) - BY
# insert: del T.__torch_function__\nT.__torch_function__ = classmethod(lambda cls, fn, types, args=(), kwargs=None: args[0].v * 9)
class T:
    def __init__(s, v): s.v = v
    @classmethod
    def __torch_function__(cls, fn, types, args=(), kwargs=None):
        args = [a.v if isinstance(a, T) else a for a in args]
        return fn(*args) * BY
BY = 2.0
def f(x): return torch.add(T(x), 1.0) + torch.sin(T(x))
