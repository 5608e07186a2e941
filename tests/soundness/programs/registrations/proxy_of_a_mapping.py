# edit: c.k = 3.0 => c.k = 4.0
import collections.abc
N = []
class M(collections.abc.Mapping):
    def __init__(s, d): s.d = d
    def __getitem__(s, k):
        N.append(k)
        return s.d[k]
    def __iter__(s): return iter(s.d)
    def __len__(s): return len(s.d)
class C: pass
c = C()
c.p = types.MappingProxyType(M({"a": 2.0}))
c.k = 3.0
def f(x): return x * c.k
def results(compile):
    with torch.no_grad(): return [compile(f)(X), torch.tensor(len(N))]
