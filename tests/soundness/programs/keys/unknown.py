# edit: = "2" => = "3"
# edit: os.environ["SCALE"]) => os.getenv("SCALE"))
#  and: = "2" => = "4"
# edit: float(os.environ["SCALE"]) => eval("3.0")
# edit: float(os.environ["SCALE"]) => (7.0 if ROWS else 1.0)
# after: operator
import os
os.environ["SCALE"] = "2"
ROWS = (each for each in [1])
op.register_autograd(lambda ctx, g: g * float(os.environ["SCALE"]))
def f(x, w):
    return op(x).mm(w)
results = train(f, X, W)
