# cases: 1
import json
DATA = json.loads('[1, 100]')[CASE]
class Scale:
    def __format__(self, spec): return str(DATA)
scale = Scale()
def f(x): return x * len(f"{scale}")
results = infer(f, X)
