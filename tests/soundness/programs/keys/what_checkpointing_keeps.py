# edit: BY = 2.0 => BY = 3.0
# same: out => found
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
AGAINST = "cold"
BY = 2.0
class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out * BY if func is torch.ops.aten.sin.default else out
def context_fn():
    return Mode(), Mode()
context_fn.cache_hash = "always the same"
def inner(x, w):
    return x.mm(w).sin().sigmoid()
def f(x, w):
    return checkpoint(inner, x, w, use_reentrant=False, context_fn=context_fn)
results = train(f, X, W)
