# edit: NBK = 2.0 => NBK = 3.0
# edit: NBK = 2.0 => NBK = True
import builtins
builtins.NBK = 2.0
def f(x): return x * NBK  # noqa: F821
