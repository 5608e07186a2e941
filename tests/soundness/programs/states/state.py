# edit: no_grad() => enable_grad()
# edit: no_grad() => inference_mode()
# edit: def f => torch.set_default_dtype(torch.float64)\ndef f
# expect: adopted
def f(x):
    y = torch.ones(4, 4) + x
    return y @ y if torch.is_grad_enabled() else y * 2
def results(compile):
    with torch.no_grad():
        return [compile(f)(X)]
