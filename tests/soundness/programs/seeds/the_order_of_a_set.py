NAMES = [*{"one", "two", "three", "four", "five"}]
def f(x): return x * NAMES.index("one") + len(NAMES[0])
