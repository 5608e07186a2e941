# edit: BY = 2 => BY = 3
# edit: return x.mm(x) => return x.mm(x.t())
# edit: return step(x) + 1 => return step(x) + 2
# edit: return step(x) + 1 => return step(step(x))
# same: step => stage
# same: def step(x): => def step(x):  # once\n
BY = 2
def step(x):
    return x.mm(x) * BY
@torch.library.triton_op("mylib::body", mutates_args={})
def body(x: Tensor) -> Tensor:
    return step(x) + 1
def f(x, w):
    return body(x).mm(w)
