# edit: "doc" => "document"
def g(x):
    "doc"
    return x
def f(x): return x * len(g.__code__.co_consts[0])
