# cases: 1
# expect: traced
import os
os.environ["FLAG"] = ("", "abc")[CASE]
def call(get, one, other): return get(other)
def f(x): return x * 2 if call(os.environ.get, "OTHER", "FLAG") else x * 3
