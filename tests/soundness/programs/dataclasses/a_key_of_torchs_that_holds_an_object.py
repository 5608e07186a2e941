# data: [1, 2]
# expect: adopted
import torch.utils._pytree as pytree
key, same = pytree.MappingKey(types.SimpleNamespace(k=DATA)), pytree.MappingKey(types.SimpleNamespace(k=1))
named = pytree.MappingKey(types.SimpleNamespace(k=10**DATA))
def f(x): return x * (2 if key == same else 3) + len(str(named))
