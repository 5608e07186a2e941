# data: [[2.0, 0], [3.0, 0], [2.0, 1]]
# expect: adopted
def make(scale, base):
    class Made(base):
        gain = scale
        def run(self, x): return x * self.gain + len(type(self).__mro__)
    return Made
class Base: pass
net = make(DATA[0], (object, Base)[DATA[1]])()
def f(x): return net.run(x)
