# data: [0, 3.0]
# expect: adopted
import contextvars
scale = contextvars.ContextVar("scale", default=2.0)
if DATA: scale.set(DATA)
def f(x): return x * scale.get()
