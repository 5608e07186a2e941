# edit: enabled=False => enabled=True
# edit: dtype=torch.bfloat16, enabled=False => dtype=torch.float16
# edit: \ndef results => \ntorch.set_autocast_enabled('cpu', True)\nSCOPE = torch.no_grad()\ndef results
def f(x, w):
    y = x @ w
    return y * 2 if torch.is_autocast_enabled("cpu") else y * 3
SCOPE = torch.autocast("cpu", dtype=torch.bfloat16, enabled=False)
def results(compile):
    with SCOPE, torch.no_grad(): return [compile(f)(X, W)]
