# data: [[1.0, 1.0], [1.5, 1.5], [1.0, 2.0], [2.0, 2.0]]
# expect: adopted
import enum
class Mode(enum.Enum): ONE = DATA[0]; TWO = 2.0
mode = Mode(DATA[1])
def f(x): return x * mode.value * len(Mode)
