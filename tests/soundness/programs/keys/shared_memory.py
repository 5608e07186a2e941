# edit: PAIR = (P, Q) => PAIR = (P, P.view(6, 8))
# edit: P, Q = torch.zeros(6, 8), torch.zeros(6, 8) => L = torch.zeros(12, 8); P, Q = L[:6], L[3:9]
# edit: P, Q = torch.zeros(6, 8), torch.zeros(6, 8) => L = torch.zeros(12, 8); P, Q = L[:6], L[6:]
# edit: P, Q = torch.zeros(6, 8), torch.zeros(6, 8) => L = torch.zeros(6, 16); P, Q = L[:, ::2], L[:, 1::2]
# edit: DYNAMIC = None => DYNAMIC = True
#  and: PAIR = (P, Q) => PAIR = (P, P.view(6, 8))
# same: def f(x, y): => def f(x, y):  # both
# same: PAIR => INPUTS
# same: torch.zeros(6, 8), torch.zeros(6, 8) => torch.zeros(6, 8), torch.zeros(48).view(6, 8)
P, Q = torch.zeros(6, 8), torch.zeros(6, 8)
PAIR = (P, Q)
def f(x, y):
    x.add_(1)
    return x + y
DYNAMIC = None
def results(compile):
    with torch.no_grad():
        return [compile(f, dynamic=DYNAMIC)(*PAIR), *PAIR]
