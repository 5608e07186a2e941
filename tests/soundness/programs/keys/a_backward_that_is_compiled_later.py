# edit:     y.backward() =>         y.backward()
# after: passes
class Pass(Named):
    def __call__(self, graph):
        for node in graph.nodes:
            if node.target is aten.cos.default:
                node.target = aten.sin.default

def results(compile):
    x = X.clone().requires_grad_()
    with config.patch(post_grad_custom_post_pass=Pass()):
        y = compile(lambda x: x.sin() * 2)(x).sum()
    y.backward()
    return [y.detach(), x.grad]
