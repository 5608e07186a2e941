# cases: 1
from pathlib import Path
def f(x): return x * (2 + int(Path("case.txt").read_text()))
