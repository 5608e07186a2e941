# edit: ROWS = 4 => ROWS = 2
# edit: (x * k)[:ROWS] => (x * k)[:ROWS].t().contiguous().t()
#  and: new_empty(rows, 4) => new_empty(4, rows).t()
# edit: k: float = 2.0 => k: float = 3.0
# edit: x: Tensor, k: float = 2.0) -> Tensor => x: Tensor, k: float = 2.0, j: int = 0) -> Tensor
#  and: fake(x, k=2.0) => fake(x, k=2.0, j=0)
# edit: scale", mutates_args=() => scale", mutates_args=(), tags=(torch.Tag.needs_fixed_stride_order,)
# edit: return x.new_empty(rows, 4) => return x.new_empty(rows, 4, dtype=X.dtype)
# same: found = (x * k)[:ROWS] => found = (x * k + 1)[:ROWS]
# same: return found\n@scale => print(end='')\n    return found\n@scale
# same: found = empty(x, ROWS) => made = empty(x, ROWS)
#  and: return found\ndef f => return made\ndef f
# same: def fake(x => def _(x
ROWS = 4
def empty(x, rows):
    return x.new_empty(rows, 4)
@torch.library.custom_op("mylib::scale", mutates_args=())
def scale(x: Tensor, k: float = 2.0) -> Tensor:
    found = (x * k)[:ROWS]
    return found
@scale.register_fake
def fake(x, k=2.0):
    found = empty(x, ROWS)
    return found
def f(x, w):
    return scale(x).to(w.dtype).mm(w)
