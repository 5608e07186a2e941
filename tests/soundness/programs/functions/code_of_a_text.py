# cases: 2
# expect: adopted
import json
DATA = json.loads('["def g(x): return x + 1", "def g(x): return x - 1", "g = torch.sin"]')[CASE]
exec(DATA)
def f(x): return g(x)  # noqa: F821
results = infer(f, X)
