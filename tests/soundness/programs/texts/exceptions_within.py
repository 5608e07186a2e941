# edit: KIND = ValueError => KIND = KeyError
# edit: E(ValueError) => E(TypeError)
# edit: E("a") => E("abc")
class E(ValueError): pass
def inner(x):
    try: raise E("a")
    except TypeError: return x * 9
def f(x):
    try: return inner(x)
    except KIND as e:
        x = x * (2 if isinstance(e, E) else 3)
        return x + len(e.args) + len(str(e))
    except Exception: return x * 7
KIND = ValueError
