# edit: complex(0.0, 2.0) => complex(-0.0, 2.0)
# edit: complex(0.0, 2.0) => complex(0.0, 3.0)
Z = complex(0.0, 2.0)
def f(x): return x * Z.imag + math.copysign(3.0, Z.real) + abs(Z)
