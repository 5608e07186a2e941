# edit: BY = 2 => BY = 3
# edit: return g * BY + x => return g * BY - x
# edit: return x * BY => return x + BY
# edit: save_for_backward(x) => save_for_backward(x * 2)
# same: BY => FACTOR
# same: class Scaled(torch.autograd.Function): => class Scaled(torch.autograd.Function):\n    'Twice.'
BY = 2
class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * BY
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * BY + x
def f(x, w):
    return Scaled.apply(x).mm(w)
results = train(f, X, W)
