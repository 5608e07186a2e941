# cases: 1
# expect: adopted
import json
DATA = json.loads('[false, true]')[CASE]
if DATA: abs = lambda x: 7  # noqa: E731
def f(x): return x * abs(-3)
results = infer(f, X)
