# edit: return 7.0 => return 8.0
# edit: self.k = 2.0 => self.k = 2.0; self.zzz = 1.0
# edit: class Any: => class Any:\n    zzz = 3.0
# expect: adopted
class Any:
    def __init__(self): self.k = 2.0
    def __getattr__(self, name): return 7.0
a = Any()
def f(x): return x * a.zzz + a.k
