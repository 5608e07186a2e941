# cases: 2
# expect: adopted
import json
from pathlib import Path
Path("config.json").write_text('{"layers": [{"gain": 1.5}, {"gain": %d}], "act": "%s"}' % (CASE % 2, "relu" if CASE < 2 else "sin"))
CONFIG = json.loads(Path("config.json").read_text())
def f(x):
    for layer in CONFIG["layers"]: x = x + layer["gain"]
    return getattr(torch, CONFIG["act"])(x)
