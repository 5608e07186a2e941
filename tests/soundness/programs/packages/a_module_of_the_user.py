# cases: 2
from pathlib import Path
Path("own_module.py").write_text("def scale(x): return x %s 3" % "*+-"[CASE])
sys.path.insert(0, str(Path.cwd()))
import own_module
def f(x): return own_module.scale(x) + 1
