# edit: k = 5.0 => k = 6.0
# edit: D(a=2.0) => D(a=3.0)
# edit: return 7 => return 8
class D(dict):
    k = 5.0
    def __missing__(s, key): return len(key) * s.k
class L(list):
    def __len__(s): return 7
    def __bool__(s): return FLAG
d, l, FLAG = D(a=2.0), L([1.0, 2.0]), True
def f(x): return x * d["a"] + d["zzz"] + len(l) + l[1] + (3 if l else 4)
