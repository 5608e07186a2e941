# cases: 1
# expect: adopted
import json
DATA = json.loads('["float32", "float64"]')[CASE]
torch.set_default_dtype(getattr(torch, DATA))
def f(x): return x + torch.ones(4)
results = infer(f, X)
