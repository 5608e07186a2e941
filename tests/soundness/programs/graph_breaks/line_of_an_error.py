# edit: print("b") => # one\n    # two\n    print("b")
import traceback
def f(x):
    x = x * 2
    print("b")
    h(x)
    return x
def h(x): raise ValueError("q")
def results(compile):
    with torch.no_grad():
        try: compile(f)(X)
        except ValueError as e:
            first = f.__code__.co_firstlineno
            steps = traceback.extract_tb(e.__traceback__)
            lines = [s.lineno - first for s in steps if s.name in ("f", "h") or "resume" in s.name]
            return [torch.tensor(lines[-2:])]
