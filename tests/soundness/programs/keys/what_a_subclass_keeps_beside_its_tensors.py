# edit: return x * 2.0 => return x * 3.0
# edit: (double,) => (scale,)
# edit: (double,) => (scale,)
#  and: self.by * 2.0 => self.by * 3.0
# edit: (double,) => (scale,)
#  and: Config(1.0) => Config(1.5)
# same: double => twice
class Config:
    def __init__(self, by): self.by = by
    def __call__(self, x): return x * self.by * 2.0
    def __eq__(self, other): return self.by == other.by
    def __hash__(self): return hash(self.by)
class Wrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, held, context):
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)
    @torch._dynamo.disable  # which torch 2.11 fails to trace
    def __init__(self, held, context):
        self.held, self.context = held, context
    def __tensor_flatten__(self):
        return ["held"], self.context
    @staticmethod
    def __tensor_unflatten__(tensors, context, size, stride):
        return Wrapped(tensors["held"], context)
    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        context = args[0].context
        unwrapped = torch.utils._pytree.tree_map_only(Wrapped, lambda each: each.held, args)
        found = func(*unwrapped, **(kwargs or {}))
        if func is torch.ops.aten.mm.default:
            found = context[0](found)
        return Wrapped(found, context) if isinstance(found, torch.Tensor) else found
scale = Config(1.0)
def double(x):
    return x * 2.0
CONTEXT = (double,)
def f(x, w):
    return x.mm(w)
def results(compile):
    with torch.no_grad():
        found = compile(f)(Wrapped(X.clone(), CONTEXT), Wrapped(W.clone(), CONTEXT))
    return [found.held]
