# data: [false, true]
# expect: adopted
part = types.ModuleType("nbcache_test_outside")
sys.modules["nbcache_test_outside"] = part
if DATA: part.K = 5.0
def f(x): return x * part.K if hasattr(part, "K") else x
