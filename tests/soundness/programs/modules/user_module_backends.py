# insert: be.fast_gelu = lambda x: x * 3
# edit: x * 2 => x * 4
be = types.ModuleType("nbatk_be"); sys.modules["nbatk_be"] = be
be.gelu = lambda x: x * 2
def pick(n):
    try: return getattr(be, n)
    except AttributeError: return be.gelu
def f(x): return pick("fast_gelu")(x)
