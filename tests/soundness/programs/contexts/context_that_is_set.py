# edit: on = False => on = True
# edit: Flag.on, True => Flag.on, False
# edit: Flag.on = s.before => pass
class Flag:
    on = False
    def __enter__(s): s.before, Flag.on = Flag.on, True
    def __exit__(s, kind, value, tb): Flag.on = s.before
flag = Flag()
def g(x): return x * 2 if Flag.on else x * 3
def f(x):
    y = g(x)
    with flag: y = y + g(x)
    return y - g(x) * 2
