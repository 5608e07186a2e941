# edit: "k": 2.0, "z": 1 => "k": 2, "z": 1
# edit: "z": 1 => "z": 1, "y": 2
# edit: [1, 2.0, 3] => [1, 2.0, 4]
M, S, V = {"k": 2.0, "z": 1}, [1, 2.0, 3], 4
class Lim: TOP = 4
def f(x):
    match M:
        case {"k": float(k), **rest}: x = x * k + len(rest)
        case {"k": k}: x = x - k
    match S:
        case [1, *mid, 3]: x = x + len(mid) + mid[0]
        case [_, _, _]: x = x * 7
        case _: x = x * 8
    match V:
        case Lim.TOP: return x * 2
        case int() | float() if V > 5: return x * 3
        case None: return x
        case _: return x * 5
