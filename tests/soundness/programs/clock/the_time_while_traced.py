# expect: traced
import time
def f(x):
    now = time.time()
    return x * now, now
def results(compile):
    before = time.time()
    with torch.no_grad(): _, now = compile(f)(X)
    return [torch.tensor(now >= before)]
