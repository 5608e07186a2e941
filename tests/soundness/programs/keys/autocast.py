# edit: "cpu", torch.bfloat16)\ndef => "cpu", torch.float16)\ndef
# edit: op.register_autocast("cpu", torch.bfloat16) =>
@torch.library.custom_op("mylib::op", mutates_args=())
def op(x: Tensor) -> Tensor:
    return x * 2
@op.register_fake
def _(x):
    return torch.empty_like(x)
op.register_autocast("cpu", torch.bfloat16)
def f(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return op(x), x.mm(w)
results = infer(f, X, W)
