# edit: layers=2 => layers=3
# edit: scale=0.5 => scale=0.25
# edit: "relu" => "sin"
# same: results = => d = Config(layers=5)\nresults =
class Config:
    def __init__(s, **k): s.__dict__.update(k)
    def __getitem__(s, name): return getattr(s, name)
c = Config(layers=2, scale=0.5, act="relu", extra={"eps": 1e-5})
def f(x):
    for _ in range(c.layers): x = getattr(torch, c.act)(x) * c["scale"] + c.extra["eps"]
    return x
