# edit: ["a", "b"] => ["b", "a"]
# edit: x * 3 => x * 4
# insert: n.on_a = lambda x: x * 9
class Net:
    def on_a(s, x): return x * 2
    def on_b(s, x): return x * 3
    def run(s, x):
        for k in KINDS: x = getattr(s, "on_" + k)(x) + 1
        return x
KINDS = ["a", "b"]
n = Net()
def f(x): return n.run(x)
