# edit: def f => _, get = make()\ndef f
# edit: n = 1.0 => n = 4.0
# edit: + 3.0 => - 3.0
def make():
    n = 1.0
    class Inc:
        def go(self):
            nonlocal n
            n = n + 3.0
    class Get:
        def go(self): return n
    return Inc(), Get()
inc, get = make()
def f(x):
    inc.go()
    return x * get.go()
