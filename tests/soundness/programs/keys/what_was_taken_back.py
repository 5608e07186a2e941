# edit: # now => lib._destroy()
# edit: # now => ACOSH.py_kernels.clear(); ACOSH._dispatch_cache.clear()
# same: # now => # then
lib = torch.library.Library("aten", "IMPL")
lib.impl("asinh", lambda x: x * 2, "Autograd")
ACOSH = torch.ops.aten.acosh.default
@ACOSH.py_impl(torch._C.DispatchKey.Autograd)
def acosh(x):
    return x * 3
# now
results = infer(lambda x, w: torch.asinh(x) + torch.acosh(x + 9), X, W)
AGAINST = "cold"
