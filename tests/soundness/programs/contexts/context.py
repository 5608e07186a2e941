# insert: CV.set(5.0)
# edit: default=1.0 => default=3.0
import contextvars, threading
CV = contextvars.ContextVar("CV", default=1.0)
def f(x): return x * CV.get()
