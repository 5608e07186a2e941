# cases: 2
# expect: adopted
import json
DATA = json.loads('["sin", "cos", "own"]')[CASE]
g = {'sin': torch.sin, 'cos': torch.cos, 'own': lambda x: x * 3}[DATA]
def f(x): return g(x) + 1
results = infer(f, X)
