# edit: depth = 1 => depth = 3
# edit: act="tanh" => act="relu"
# edit: 1e-3 => 1.0
class Base:
    depth, act, eps = 2, "relu", 1e-3
    @classmethod
    def build(cls, **k):
        c = cls()
        for n, v in k.items(): setattr(c, n, v)
        return c
class Small(Base): depth = 1
conf = Small.build(act="tanh")
ACTS = {"relu": torch.relu, "tanh": torch.tanh}
def f(x):
    for i in range(conf.depth): x = ACTS[conf.act](x) + conf.eps * (i + 1)
    return x
