# edit: {"a"} => {"b"}
# edit: {"a"} => {"a", "c"}
# expect: adopted
class Net(torch.nn.Module):
    names = {"a"}
    def forward(self, x):
        x = x * 2 if "a" in self.names else x * 3
        return x if "c" in self.names else x + 1
results = infer(Net(), X)
