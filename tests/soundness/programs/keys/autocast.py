# edit: "cpu", torch.bfloat16)\ndef => "cpu", torch.float16)\ndef
# edit: op.register_autocast("cpu", torch.bfloat16) =>
# after: operator
op.register_autocast("cpu", torch.bfloat16)
def f(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return op(x), x.mm(w)
