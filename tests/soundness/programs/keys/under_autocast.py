# edit: bfloat16 => float16
# edit: autocast("cpu", torch.bfloat16) => enable_grad()
def results(compile):
    f = compile(lambda x, w: x.mm(w) + 1)
    with torch.autocast("cpu", torch.bfloat16):
        return train(lambda x, w: f(x, w), X, W)(lambda g: g)
AGAINST = "cold"
