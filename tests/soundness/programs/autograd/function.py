# edit: x * 13.0 => x * 14.0
# edit: g * 13.0 => g * 14.0
class AF(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 13.0
    @staticmethod
    def backward(ctx, g): return g * 13.0
def f(x): return AF.apply(x) + 1
results = train(f, X)
