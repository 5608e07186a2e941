# edit: E = {"a": 1.0} => E = {"c": 1.0}
# edit: E = {"a": 1.0} => E = {"a": 1.5}
D = {"b": 2.0, "a": 3.0}
E = {"a": 1.0}
KEYS = D.keys()
def f(x):
    for v in D.values(): x = x * 2 + v
    x = x * len(D.keys() & E.keys())
    return x + (list(D)[0] == "b") + (("a", 1.0) in E.items())
