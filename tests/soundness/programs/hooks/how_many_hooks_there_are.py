# edit: def f => other.register_forward_pre_hook(print)\ndef f
# expect: traced
from torch.utils.hooks import RemovableHandle
other = torch.nn.Linear(4, 4)
def f(x): return x * (RemovableHandle.next_id + 1)
