# data: [2.0, 3.0]
import operator
class Inner: pass
class Net:
    k = property(operator.attrgetter("inner.k"))
net = Net(); net.inner = Inner(); net.inner.k = DATA
def f(x): return x * net.k
