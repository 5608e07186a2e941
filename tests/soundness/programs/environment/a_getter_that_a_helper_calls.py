# cases: 1
# expect: traced
import os
NAME = "environ"
os.environ["FLAG"] = ("", "abc")[CASE]
def call(get, one, other): return get(other)
def helped(x): return x * 2 if call(os.environ.get, "OTHER", "FLAG") else x * 3
def by_name(x): return x * 2 if getattr(os, NAME).get("FLAG") else x * 3
def results(compile):
    with torch.no_grad(): return [compile(helped)(X), compile(by_name)(X)]
