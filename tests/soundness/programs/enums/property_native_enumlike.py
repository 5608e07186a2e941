# edit: "A": 2.0 => "A": 4.0
import enum
W = {"A": 2.0, "B": 3.0}
class E(str, enum.Enum):
    A = "A"
    B = "B"
    def __eq__(s, o): return W["A"] > 2.5
    def __hash__(s): return hash(W["A"])
e = E.A
def f(x): return x * 2 if e == "A" else x * 3
def g(x): return x * {"A": 4.0}.get(e, 9.0)
def h(x): return x * 2 if e in ("A", "B") else x * 5
def results(compile):
    with torch.no_grad(): return [compile(j)(X) for j in (f, h)]
