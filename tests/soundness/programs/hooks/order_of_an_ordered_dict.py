# insert: OD.move_to_end("a")
# edit: o + 5.0) => o + 5.0, prepend=True)
from collections import OrderedDict
OD = OrderedDict(a=2.0, b=3.0)
m = torch.nn.Linear(4, 4)
m.register_forward_hook(lambda m, i, o: o * 2.0)
m.register_forward_hook(lambda m, i, o: o + 5.0)
def f(x):
    for k, v in OD.items(): x = x * 2 + v
    return m(x)
