# data: ["abc", "abd"]
# expect: adopted
def made(text):
    space = {}
    exec(compile(f"def g(x):\n    {text!r}\n    return x * 2", "made", "exec"), space)
    return space["g"].__code__
A, B = made("abc"), made(DATA)
L = [made("zzz"), B]
def f(x):
    x = x * (2 if A == B else 3)
    return x + (1 if A in L else 5)
