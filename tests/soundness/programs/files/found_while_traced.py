# cases: 1
import os
if CASE: open("flag", "w").close()
def f(x): return x * 2 if os.path.exists("flag") else x * 3
