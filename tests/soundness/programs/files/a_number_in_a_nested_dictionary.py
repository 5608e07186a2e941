# cases: 2
# expect: adopted
import json
DATA = json.loads('[{"a": [0, {"k": 2.0}]}, {"a": [0, {"k": 3.0}]}, {"a": [0, {"k": 2}]}]')[CASE]
def f(x): return x * DATA['a'][1]['k']
results = infer(f, X)
