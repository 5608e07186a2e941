# after: packages
# cases: 2
install(f"1.{CASE}", "def scale(x): return x %s 3" % "*+-"[CASE])
import installed
def f(x): return installed.scale(x) + 1
