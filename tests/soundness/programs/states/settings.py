# insert: import torch._dynamo.config as c\nc.specialize_float = True
# insert: import torch._inductor.config as c\nc.fallback_random = True
# edit: infer(f, X) => lambda compile: [compile(f, fullgraph=True)(X)]
# expect: adopted
def f(x): return x * 2 + 1
