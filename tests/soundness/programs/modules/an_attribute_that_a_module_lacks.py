# cases: 1
# expect: adopted
import json
DATA = json.loads('[false, true]')[CASE]
part = types.ModuleType("nbcache_test_outside")
sys.modules["nbcache_test_outside"] = part
if DATA: part.K = 5.0
def f(x): return x * part.K if hasattr(part, "K") else x
results = infer(f, X)
