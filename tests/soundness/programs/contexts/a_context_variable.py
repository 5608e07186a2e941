# cases: 1
# expect: adopted
import json
DATA = json.loads('[0, 3.0]')[CASE]
import contextvars
scale = contextvars.ContextVar("scale", default=2.0)
if DATA: scale.set(DATA)
def f(x): return x * scale.get()
results = infer(f, X)
