# cases: 2
import os
if CASE: os.environ["NBCACHE_PROGRAM_GAIN"] = str(CASE)
def f(x): return x * float(os.getenv("NBCACHE_PROGRAM_GAIN", "7"))
