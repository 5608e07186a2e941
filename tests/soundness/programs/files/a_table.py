# cases: 2
# expect: adopted
import csv, io
from pathlib import Path
Path("table.csv").write_text("name,weight\na,2\nb,%d\n" % (3 + CASE))
TABLE = {row["name"]: float(row["weight"]) for row in csv.DictReader(io.StringIO(Path("table.csv").read_text()))}
def f(x): return x * TABLE["a"] + TABLE["b"] * sum(TABLE.values())
