# edit: 0.1 => 0.2
# edit: loss(self.score(x), => loss(self.score(x).relu(),
# expect: adopted
class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.score = torch.nn.Linear(4, 4)
    def forward(self, x):
        loss = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
        return loss(self.score(x), torch.tensor([0, 1, 2, 0]))
results = train(Classifier(), X)
