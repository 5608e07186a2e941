# cases: 2
# expect: adopted
import json
DATA = json.loads('[[4], [1], [4, 4]]')[CASE]
Y = torch.ones(*DATA)
def f(x): return x + Y * Y.shape[-1]
results = infer(f, X)
