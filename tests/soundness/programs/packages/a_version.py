# after: packages
# cases: 1
from importlib.metadata import version
install(f"1.{CASE}", "K = 2.0")
import installed
IS_NEW = version("installed") == "1.1"
def f(x): return x * installed.K if IS_NEW else x * 5
