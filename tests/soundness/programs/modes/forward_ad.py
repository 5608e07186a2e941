# edit: [g(X)] => [fw.unpack_dual(g(fw.make_dual(X, W))).tangent]
#  and: with torch.no_grad(): => with fw.dual_level():
import torch.autograd.forward_ad as fw
def f(x): return x.sin() * K
K = 2.0
def results(compile):
    g = compile(f)
    with torch.no_grad(): return [g(X)]
