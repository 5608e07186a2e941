# edit: a = 2.0 => a = 3.0
# edit: AT = 0 => AT = 1
# edit: (3.0, 4.0) => (5.0, 4.0)
import operator
class C:
    a = 2.0
    def go(s, k): return s.a * k
c = C()
T = (3.0, 4.0)
NAME = "a"
def f(x):
    x = x * operator.attrgetter(NAME)(c) + operator.itemgetter(AT)(T)
    return x + operator.methodcaller("go", 5.0)(c)
AT = 0
