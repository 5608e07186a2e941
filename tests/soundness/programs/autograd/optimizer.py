# edit: lr=0.1 => lr=0.2
# edit: momentum=0.9 => momentum=0.5
# edit: momentum=0.9 => weight_decay=0.5
lin = torch.nn.Linear(4, 4)
opt = torch.optim.SGD(lin.parameters(), lr=0.1, momentum=0.9)
def results(compile):
    step = compile(opt.step)
    for _ in range(2):
        opt.zero_grad()
        lin(X).square().sum().backward()
        step()
    return [lin.weight.detach(), lin.bias.detach()]
