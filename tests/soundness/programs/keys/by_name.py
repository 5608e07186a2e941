# edit: return g * 2 => return g * 4
# edit: torch.ops.mylib.first(g) => torch.ops.mylib.first(g) * 2
# edit: lambda x: x * 2 => lambda x: (x * 2)[:2]
#  and: lambda x: x + 1 => lambda x: x + 1
#  and: return torch.empty_like(x) => return torch.empty_like(x)[:2]
#  and: return g * 2 => return torch.cat([g, g])
# edit: first", shape => first", lambda x: torch.empty_like(x, dtype=torch.float64)
#  and: lambda x: x * 2 => lambda x: (x * 2).double()
#  and: return g * 2 => return g.float() * 2
# same: lambda x: x * 2 => lambda x: x * 2.0 * 1
# same: def shape(x): => def shape(x):\n    'The same.'
# same: def backward( => def back(
#  and: first", backward => first", back
def shape(x):
    return torch.empty_like(x)
def backward(ctx, g):
    return g * 2
lib = torch.library.Library("mylib", "FRAGMENT")
torch.library.define("mylib::first", "(Tensor x) -> Tensor")
torch.library.define("mylib::second", "(Tensor x) -> Tensor")
torch.library.impl("mylib::first", "cpu", lambda x: x * 2)
torch.library.impl("mylib::second", "cpu", lambda x: x + 1)
torch.library.register_fake("mylib::first", shape)
torch.library.register_fake("mylib::second", shape)
torch.library.register_autograd("mylib::first", backward)
torch.library.register_autograd("mylib::second", lambda ctx, g: torch.ops.mylib.first(g))
def f(x, w):
    return torch.ops.mylib.second(torch.ops.mylib.first(x)).to(w.dtype).mm(w)
results = train(f, X, W)
