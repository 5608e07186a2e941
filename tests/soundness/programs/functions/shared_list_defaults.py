# edit: def get(box=D) => def get(box=[1.0])
# edit: D = [1.0] => D = [2.0]
# edit: def get(box=D) => def get(box=[*D])
D = [1.0]
def push(v, box=D): box.append(v)
def get(box=D): return sum(box)
def f(x):
    push(2.0)
    return x * get()
