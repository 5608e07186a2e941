# edit: "a+" => "a"
# edit: "b+" => "b"
# edit: "b+" => "c"
# expect: traced
import re
class H:
    pats = {"k": re.compile("a+")}
    def __init__(s): s.own = [re.compile("b+")]
h = H()
def f(x):
    m = h.pats["k"].match("aab"); n = h.own[0].search("aabbb")
    return x * m.end() + n.end() if m and n else x * 9
