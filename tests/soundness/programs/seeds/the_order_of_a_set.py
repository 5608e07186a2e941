NAMES = [*{"one", "two", "three", "four", "five"}]
def f(x): return x * NAMES.index("one") + len(NAMES[0])
results = infer(f, X)
