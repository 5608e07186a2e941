# edit: def f => os.environ["NBX"] = "1"\ndef f
# edit: environ.get => getenv
# edit: "NBX", "0" => "NBY", "1"
# same: def f => os.environ["NBZ"] = "1"\ndef f
# expect: adopted
import os
def f(x): return x * 2 if os.environ.get("NBX", "0") == "0" else x * 3
