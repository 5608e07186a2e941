# after: packages
# cases: 2
install(f"1.{CASE}", f"K = {CASE + 2}.0")
import installed
def f(x): return x * installed.K
