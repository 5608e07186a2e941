# edit: scope = contextlib.nullcontext => class Mo(torch.overrides.TorchFunctionMode):\n    def __torch_function__(s, f, t, a=(), k=None): return f(*a, **(k or {}))\nscope = Mo
import contextlib
scope = contextlib.nullcontext
def f(x): return x * (2 + len(torch.overrides._get_current_function_mode_stack()))
def results(compile):
    g = compile(f)
    with torch.no_grad():
        with scope(): a = g(X)
        return [a, g(X)]
