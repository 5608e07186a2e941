# after: packages
# cases: 1
if CASE: install("1.0", "def scale(x): return x * 3")
try:
    import installed
except ImportError:
    installed = None
def f(x): return installed.scale(x) if installed else x * 5
