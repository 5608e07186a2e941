# after: packages
# cases: 1
import importlib.metadata
install(f"1.{CASE}", "")
def f(x): return x * 2 if importlib.metadata.version("installed") == "1.0" else x * 3
