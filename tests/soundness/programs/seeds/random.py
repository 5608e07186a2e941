# edit: seed(0) => seed(1)
import random
random.seed(0)
def f(x): return x + random.random()
