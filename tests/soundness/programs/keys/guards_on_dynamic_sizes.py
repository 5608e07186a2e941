# edit: 10 => 100
# edit: LEAST, MOST = 4 => LEAST, MOST = 2
#  and: x.shape[0] > 3 => x.shape[0] > 1
# same: f => g
LEAST, MOST = 4, 10
def f(x):
    if x.shape[0] > 3:
        return x * 2
    return x * 2
def results(compile):
    x = torch.arange(6.0)
    torch._dynamo.mark_dynamic(x, 0, min=LEAST, max=MOST)
    with torch.no_grad():
        return [compile(f)(x)]
