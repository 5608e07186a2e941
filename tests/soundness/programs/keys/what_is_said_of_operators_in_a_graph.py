# edit: EAGER = True => EAGER = False
# same: EAGER => BY_ATEN
MODE = "default"
AGAINST = "cold"
EAGER = True
def f(x):
    with torch.fx.traceback.annotate({"fallback_to_eager": EAGER}):
        return torch.nn.functional.dropout(x, 0.5)
def results(compile):
    torch.manual_seed(0)
    with torch.no_grad():
        return [compile(f)(X)]
