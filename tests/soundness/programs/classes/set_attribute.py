# edit: BY = 3.0 => BY = 4.0
# edit: v * BY => v + BY
class A:
    def __setattr__(s, name, v): object.__setattr__(s, name, v * BY)
BY = 3.0
def f(x):
    a = A()
    a.k = 2.0
    return x * a.k
