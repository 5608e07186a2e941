# cases: 1
# expect: adopted
import json
DATA = json.loads('[["a", "b"], ["b", "a"]]')[CASE]
table = dict.fromkeys(DATA, 2.0)
def f(x):
    for key in table: x = x + 1 if key == "a" else x * table[key]
    return x
results = infer(f, X)
