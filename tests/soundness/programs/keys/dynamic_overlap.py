# edit: torch.zeros(6, 8), torch.zeros(6, 8))] => torch.zeros(5, 8), torch.zeros(5, 8))]
# same: PAIRS => BOTH
L = torch.zeros(6, 8)
PAIRS = [(L, L.view(6, 8)), (torch.zeros(6, 8), torch.zeros(6, 8))]
def f(x, y):
    x.add_(1)
    return x + y
def results(compile):
    g = compile(f, dynamic=True)
    with torch.no_grad():
        return [g(*pair) for pair in PAIRS]
