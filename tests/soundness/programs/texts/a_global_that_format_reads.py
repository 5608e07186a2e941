# data: [1, 100]
class Scale:
    def __format__(self, spec): return str(DATA)
scale = Scale()
def f(x): return x * len(f"{scale}")
