# cases: 1
import json
DATA = json.loads('[2.0, 3.0]')[CASE]
import operator
class Inner: pass
class Net:
    k = property(operator.attrgetter("inner.k"))
net = Net(); net.inner = Inner(); net.inner.k = DATA
def f(x): return x * net.k
results = infer(f, X)
