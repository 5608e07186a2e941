# cases: 1
# expect: adopted
import json
DATA = json.loads('[1, 2]')[CASE]
import random
random.seed(DATA)
k = random.random()
def f(x): return x * k
results = infer(f, X)
