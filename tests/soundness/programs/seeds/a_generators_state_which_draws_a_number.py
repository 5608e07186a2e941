# data: [1, 2]
# expect: adopted
import random
random.seed(DATA)
k = random.random()
def f(x): return x * k
