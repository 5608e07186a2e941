# edit: go.level = 3.0 => go.level = 4.0
# insert: C.go.more = 7.0
# insert: C.went = len
class C:
    def go(s, x): return x * 2
    go.level = 3.0
c = C()
def f(x): return c.go(x) + c.go.level + getattr(C.go, "more", 1.0) + callable(getattr(c, "went", None))
