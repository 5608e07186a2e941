# edit: mutates_args=("out",) => mutates_args=("out", "x")
#  and: out.copy_(x * 2) => out.copy_(x * 2); x.add_(1)
# edit: return x + 1 => x.add_(1); return x + 1
#  and: read", mutates_args=() => read", mutates_args=("x",)
# same: out.copy_(x * 2) => out.copy_(x * 3)
@torch.library.custom_op("mylib::put", mutates_args=("out",))
def put(x: Tensor, out: Tensor) -> None:
    out.copy_(x * 2)
@torch.library.custom_op("mylib::read", mutates_args=())
def read(x: Tensor) -> Tensor:
    return x + 1
@read.register_fake
def _(x):
    return torch.empty_like(x)
def f(x, w):
    out = torch.zeros_like(x)
    put(x, out)
    return read(out).mm(w), out
results = infer(f, X, W)
MODE = "default"
