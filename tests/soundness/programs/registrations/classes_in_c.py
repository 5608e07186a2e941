# cases: 4
# expect: adopted
import abc, numbers
class Scalar(abc.ABC): pass
class Sub(Scalar): pass
KINDS = {"number": 2.5, "list": [1, 2], "dtype": torch.float32, "text": "a"}
if CASE == 1: Sub.register(float)
if CASE == 2: Scalar.register(list)
if CASE == 3: Scalar.register(torch.dtype)
if CASE == 4: numbers.Number.register(str)
def f(x):
    for number, kind in enumerate(KINDS.values()):
        if isinstance(kind, (Scalar, numbers.Number)): x = x * (number + 2)
    return x + 1
