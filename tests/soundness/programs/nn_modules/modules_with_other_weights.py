# edit: nn.GELU() => nn.SiLU()
# edit: m(x) * 2 => m(x) * 3
# edit: Linear(4, 8) => Linear(4, 6)
#  and: Linear(8, 4) => Linear(6, 4)
# same: manual_seed(5) => manual_seed(6)
nn = torch.nn
torch.manual_seed(5)
m = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
def f(x): return m(x) * 2
