# edit: GAIN = 2.0 => GAIN = 3.0
# edit: return g * by => return g * by * 2
# edit: ctx.save_for_backward(x) => ctx.save_for_backward(x * 5)
#  and: + x * 0 => + x
# edit: ctx.extra = GAIN => ctx.extra = GAIN * x.shape[0]
# edit: op.register_autograd(make(1.0), setup_context=setup) => op.register_autograd(functools.partial(lambda by, ctx, g: g * by, 7.0))
# edit: op.register_autograd(make(1.0), setup_context=setup) => class Rules:\n    def __init__(self, by): self.by = by\n    def backward(self, ctx, g): return g * self.by\nop.register_autograd(Rules(3.0).backward)
# same: helper( => assistant(
# same: return x * 2 => return x + x
# same: def setup(ctx => def set_up(ctx
#  and: setup_context=setup => setup_context=set_up
# same: (x,) = inputs => (first,) = inputs
#  and: save_for_backward(x) => save_for_backward(first)
# after: operator
GAIN = 2.0
def helper(g, by):
    return g * by
def make(by):
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return helper(g, by) * ctx.extra + x * 0
    return backward
def setup(ctx, inputs, output):
    (x,) = inputs
    ctx.save_for_backward(x)
    ctx.extra = GAIN
op.register_autograd(make(1.0), setup_context=setup)
def f(x, w):
    return op(x).mm(w)
results = train(f, X, W)
