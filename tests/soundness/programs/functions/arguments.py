# edit: ["a"] => ["a", "b", "c"]
def f(x): return x + len(sys.argv)
sys.argv = ["a"]
