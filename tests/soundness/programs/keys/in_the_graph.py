# edit: BY = 2 => BY = 3
# edit: x * BY => x - BY
# edit: x + BY => x / BY
BY = 2
@torch._dynamo.nonstrict_trace
def traced(x):
    return x * BY
@torch._dynamo.allow_in_graph
def allowed(x):
    return x + BY
def f(x, w):
    return traced(x).mm(w) + allowed(w)
