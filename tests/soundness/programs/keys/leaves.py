# edit: torch.ones(8, 4, requires_grad=True) => torch.tanh(G(torch.ones(8, 4)))
# edit: torch.ones(8, 4, requires_grad=True) => torch.ones(8, 4, requires_grad=True) * 1
# same: torch.ones(8, 4, requires_grad=True) => torch.ones(8, 4).requires_grad_()
torch.manual_seed(0)
G, D = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
def made():
    return torch.ones(8, 4, requires_grad=True)
def loss(fake, real):
    return D(fake.detach()).exp().mean() - D(real).mean()
def results(compile):
    fake = made()
    value = compile(loss)(fake, torch.ones(8, 4))
    value.backward()
    if fake.grad_fn is not None:
        D(fake).mean().backward()
    grads = [each.grad for each in (*D.parameters(), *G.parameters())]
    return [value.detach(), *(grad for grad in grads if grad is not None)]
