# edit: FLAG = True => FLAG = False
plug = types.ModuleType("nbcache_plug7")
sys.modules["nbcache_plug7"] = plug
plug.K, plug.J = 2.0, 1.0
plug.FLAG = True
class Layer(torch.nn.Module):
    def forward(s, x, conf=plug): return x * 2 if conf.FLAG else x * 3
def f(x): return Layer()(x) + plug.J
