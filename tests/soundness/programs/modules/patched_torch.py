# insert: torch.sin = torch.cos
# insert: sin = torch.cos
# insert: F.gelu = torch.sigmoid
F = torch.nn.functional
from torch import sin
from torch.nn.functional import gelu as act
def f(x): return torch.sin(x) + sin(x) * 2 + act(x) + F.gelu(x) * 3 + math.sin(1.0) + torch.clamp(x, min=0.1)
