# cases: 2
# expect: adopted
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("width", type=int)
options = parser.parse_args()
class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width = width
    def forward(self, x): return x[:, : self.width + 1] * (self.width + 2)
results = infer(Net(options.width), X)
