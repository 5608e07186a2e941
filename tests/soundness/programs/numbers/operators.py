# edit: v * 2.0 => v * 3.0
# edit: self.v + o => self.v - o
# edit: x * self.v => x / self.v
# expect: adopted
class Point:
    def __init__(self, v): self.v = v * 2.0
    def __add__(self, o): return self.v + o
    def __call__(self, x): return x * self.v
    def __len__(self): return 3
    def __getitem__(self, i): return 4.0 + i
p = Point(1.0)
def f(x): return (p + x) + p(x) + len(p) + p[1] + Point(3).v
