# cases: 1
import os
def f(x): return x * 2 if os.environ["CASE"] == "0" else x * 3
