# insert: F.nbnew = torch.sin
# insert: torch.nbnew = torch.sin
# edit: act = "nbnew" => act = "sigmoid"
import torch.nn.functional as F
class Cfg: act = "nbnew"
cfg = Cfg()
def f(x): return getattr(F, cfg.act, F.relu)(x) + getattr(torch, cfg.act, torch.cos)(x)
