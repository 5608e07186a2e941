# data: ["sin", "cos", "own"]
# expect: adopted
g = {'sin': torch.sin, 'cos': torch.cos, 'own': lambda x: x * 3}[DATA]
def f(x): return g(x) + 1
