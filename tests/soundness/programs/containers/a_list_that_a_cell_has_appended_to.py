# cases: 1
# expect: adopted
import json
DATA = json.loads('[1, 2]')[CASE]
steps = [1.0]
for number in range(DATA): steps.append(number + 2.0)
def f(x):
    for step in steps: x = x * step
    return x
results = infer(f, X)
