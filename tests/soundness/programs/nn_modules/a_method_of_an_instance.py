# data: [false, true]
# expect: adopted
class Net(torch.nn.Module):
    def forward(self, x): return self.act(x)
    def act(self, x): return x.relu()
net = Net()
if DATA: net.act = lambda x: x.tanh()
def f(x): return net(x)
