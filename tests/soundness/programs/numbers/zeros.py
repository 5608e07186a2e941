# edit: Z = 0.0 => Z = -0.0
# edit: Z = 0.0 => Z = float('-inf')
Z = 0.0
def f(x): return x * math.copysign(2.0, Z) + torch.atan2(x * 0, torch.full_like(x, Z))
