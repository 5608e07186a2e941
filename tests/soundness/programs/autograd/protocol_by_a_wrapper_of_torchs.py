# edit: self.k = 2 => self.j = 2
import typing
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
@typing.runtime_checkable
class Holds(typing.Protocol):
    k: int
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.k = 2
    def forward(self, x): return x
net = checkpoint_wrapper(Net())
def f(x): return x * 2 if isinstance(net, Holds) else x * 3
