# edit: BY = 2.0 => BY = 3.0
# edit: (x + w).sin() => x @ w
# edit: (x + w).sin() => x @ w
#  and: BY = 2.0 => BY = 3.0
# edit: (x + w).sin() => torch.nn.functional.softmax(x, 1)
# edit: (x + w).sin() => torch.nn.functional.softmax(x, 1)
#  and: BY = 2.0 => BY = 3.0
# edit: Tensor.__add__ => Tensor.__unused__
# same: BY => FACTOR
# same: BY = 2.0 => BY = 2.0; Tensor.__repr__ = lambda self: 'x'; Tensor.unread = open
BY = 2.0
Tensor.__add__ = lambda a, b: torch.sub(a, b) * BY
Tensor.softmax = lambda self, dim, dtype=None: self * BY
Tensor.__matmul__ = lambda a, b: torch.mm(a, b) * BY
def f(x, w):
    return (x + w).sin()
