# edit: 2 ** 70 => 2 ** 71
# edit: 2 ** 70 => 2 ** 70 + 1
# edit: 2 ** 70 => float(2 ** 70)
#  and:  + N.bit_length() + float(N >> 65) =>
N = 2 ** 70
def f(x): return x * (N % 1000) + N.bit_length() + float(N >> 65)
