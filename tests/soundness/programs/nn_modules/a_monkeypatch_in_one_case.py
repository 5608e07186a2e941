# data: [false, true]
# expect: adopted
net = torch.nn.Linear(4, 4)
if DATA: torch.nn.Linear.forward = lambda self, x: x * 2
def f(x): return net(x)
