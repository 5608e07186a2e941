# cases: 1
import os, time
os.environ["TZ"] = ("UTC", "Asia/Tokyo")[CASE]
time.tzset()
def f(x): return x * (2 + time.timezone / 3600)
