# edit: (5, 1, 3) => (1, 5)
# edit: (5, 1, 3) => (0, 5)
torch._dynamo.config.capture_scalar_outputs = True
def f(x, n): return x * n.item()
def results(compile):
    compiled = compile(f)
    with torch.no_grad():
        return [compiled(X, torch.tensor(n)) for n in (5, 1, 3)]
