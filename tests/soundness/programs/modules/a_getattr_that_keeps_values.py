# after: packages
# cases: 1
# expect: traced
from pathlib import Path
Path("flags.txt").write_text(("turbo", "plain")[CASE])
install(1, """
import functools
@functools.cache
def __getattr__(name):
    if name in open("flags.txt").read(): return True
    raise AttributeError(name)
""")
import installed
# %%
kept = hasattr(installed, "turbo")
def f(x): return x * 2 if hasattr(installed, "turbo") else x * 3
