# edit: SCALE = 2.0 => SCALE = 3.0
# edit: self.other.data = self.one.data => pass
# same: model => network
AGAINST = "cold"
torch._inductor.config.freezing = True
SCALE = 2.0
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(SCALE))
        self.one = torch.nn.Parameter(torch.ones(12))
        self.other = torch.nn.Parameter(torch.full((12,), 2.0))
        self.other.data = self.one.data
    def forward(self, x):
        return self.other * (self.one * x).sin() * self.scale
model = Model().eval()
results = infer(model, torch.ones(12))
