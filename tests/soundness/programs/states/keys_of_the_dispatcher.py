# cases: 1
# expect: adopted
import contextlib
scope = torch._C._AutoDispatchBelowAutograd if CASE else contextlib.nullcontext
def f(x):
    y = x * 1
    return y * (2 if y.requires_grad else 3)
def results(compile):
    leaf, g = X.clone().requires_grad_(), compile(f)
    with scope(): y = g(leaf)
    if y.requires_grad: y.sum().backward()
    return [y.detach()]
