# edit: FACTOR = 2 => FACTOR = 3
# edit: {torch.ops.aten.mm.default: scaled} => {torch.ops.aten.mm.default: torch.sin}
# edit: def extra(x):\n        return x => def extra(x):\n        return x + 1
# edit: func(*unwrapped, **(kwargs or {})) => func(*unwrapped, **(kwargs or {})) * 2
# edit: lambda each: each.held => lambda each: each.held * 2
# edit: return Wrapped(tensors["held"]) => return Wrapped(tensors["held"] * 2)
#  and: def f( => AGAINST = "cold"\ndef f(
# same: FACTOR => BY
# same: class Base(torch.Tensor): => class Base(torch.Tensor):\n    'Does nothing.'
# same: found = func( => # as everywhere\n        found = func(
# same: unwrapped => plain
FACTOR = 2
def scaled(x):
    return x * FACTOR
class Base(torch.Tensor):
    def extra(x):
        return x
class Wrapped(Base):
    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)
    @torch._dynamo.disable  # which torch 2.11 fails to trace
    def __init__(self, held):
        self.held = held
    def __tensor_flatten__(self):
        return ["held"], None
    @staticmethod
    def __tensor_unflatten__(tensors, context, size, stride):
        return Wrapped(tensors["held"])
    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        unwrapped = torch.utils._pytree.tree_map_only(Wrapped, lambda each: each.held, args)
        found = func(*unwrapped, **(kwargs or {}))
        if func in HANDLED:
            found = HANDLED[func](Base.extra(found))
        return Wrapped(found) if isinstance(found, torch.Tensor) else found
HANDLED = {torch.ops.aten.mm.default: scaled}
def f(x, w):
    return x.mm(w)
def results(compile):
    with torch.no_grad():
        found = compile(f)(Wrapped(X.clone()), Wrapped(W.clone()))
    return [found.held]
