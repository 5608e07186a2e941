# insert: F.nbnew_v2 = torch.sin
# edit: VER = 2 => VER = 3\nF.nbnew_v3 = 1
import torch.nn.functional as F
VER = 2
def f(x): return x * 2 if not hasattr(F, f"nbnew_v{VER}") else x * 3
