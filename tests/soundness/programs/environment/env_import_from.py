# edit: def f => os.environ["NBX"] = "1"\ndef f
import os

def f(x):
    from os import environ
    return x * 2 if environ.get("NBX", "0") == "0" else x * 3
