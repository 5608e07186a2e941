# data: [["a", "b"], ["b", "a"]]
# expect: adopted
table = dict.fromkeys(DATA, 2.0)
def f(x):
    for key in table: x = x + 1 if key == "a" else x * table[key]
    return x
