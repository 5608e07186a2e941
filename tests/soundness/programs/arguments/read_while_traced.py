# cases: 1
def f(x): return x * 2 if sys.argv[1] == "0" else x * 3
