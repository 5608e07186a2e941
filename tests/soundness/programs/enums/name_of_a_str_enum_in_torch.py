# insert: torch.mine = lambda x: x * 5
# edit: ACT = Act.MINE => ACT = Act.relu
import enum
class Act(enum.StrEnum):
    MINE = enum.auto()
    relu = enum.auto()
ACT = Act.MINE
def f(x): return getattr(torch, ACT, torch.sin)(x)
