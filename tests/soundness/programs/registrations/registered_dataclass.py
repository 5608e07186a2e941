# insert: pytree.register_dataclass(Batch)
import torch.utils._pytree as pytree, dataclasses
@dataclasses.dataclass
class Batch: a: Tensor
b = Batch(torch.ones(4, 4))
def double(o): return o * 2 if isinstance(o, Tensor) else o
def f(x): return x + pytree.tree_map(double, [b])[0].a
