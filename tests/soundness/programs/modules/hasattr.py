# edit: h.k = 2.0 => h.k = 2.0\nh.more = 1
# edit: h.k = 2.0 =>
# edit: h.k = 2.0 => Holder.k = 3.0
# expect: adopted
class Holder: pass
h = Holder()
h.k = 2.0
part = types.ModuleType("nbcache_test_part")
sys.modules["nbcache_test_part"] = part
part.K = 0.25
def f(x):
    y = x * h.k if hasattr(h, "k") else x
    y = y + 10 if hasattr(h, "more") else y
    return y * part.NEW if hasattr(part, "NEW") else y + part.K
