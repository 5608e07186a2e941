# edit: aten.sin.default => aten.cos.default
# edit: by(2.0) => by(3.0)
# edit: seen = source, target, rest, 0 => seen = source, target, rest, 1
# edit: None => torch.zeros(1000, 1000)
#  and: by(2.0) => by(3.0)
# same: node => each
# after: passes
class Replace(Named):
    def __init__(self, source, target, rest):
        self.source, self.target, self.rest, self.seen = source, target, rest, 0

    def by(self, factor):
        self.factor = factor
        return self

    def __call__(self, graph):
        self.seen += 1
        for node in graph.nodes:
            if node.target is self.source:
                node.target = self.target
            elif node.target is aten.asinh.default:
                node.target, node.args = aten.mul.Tensor, (node.args[0], self.factor)

config.post_grad_custom_post_pass = Replace(aten.atan.default, aten.sin.default, None).by(2.0)
results = infer(lambda x, w: torch.asinh(x).mm(torch.atan(w)), X, W)
