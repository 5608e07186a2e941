# edit: v=2)))\ndef => v=3)))\ndef
def cell(c): return (lambda: c).__closure__[0]
N = types.SimpleNamespace
A, B = cell(N(h=N(v=2))), cell(N(h=N(v=2)))
def f(x): return x * 2 if A == B else x * 3
