# edit: BY = 2 => BY = 3
# edit: P("abc") => P("abcd")
import os
class P:
    def __init__(s, p): s.p = p
    def __fspath__(s): return s.p * BY
BY = 2
p = P("abc")
def f(x): return x * len(os.fspath(p)) + len(os.path.join("a", "b"))
