# data: [{"a": [0, {"k": 2.0}]}, {"a": [0, {"k": 3.0}]}, {"a": [0, {"k": 2}]}]
# expect: adopted
def f(x): return x * DATA['a'][1]['k']
