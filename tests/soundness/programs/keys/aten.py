# edit: BY = 2 => BY = 3
# edit: lib.impl("asinh", relu, "Autograd") =>
# edit: "asinh", relu => "asinh", torch.cos
# edit: "asinh", relu => "asinh", functools.partial(torch.mul, 3.0)
# edit: "asinh", relu => "asinh", functools.partial(torch.mul, 4.0)
# same: BY => FACTOR
# same: def relu => def gelu
#  and: relu => gelu
lib = torch.library.Library("aten", "IMPL")
BY = 2
def relu(x):
    return x * BY
lib.impl("asinh", relu, "Autograd")
def f(x, w):
    return torch.asinh(x).mm(w)
