# data: [1, 2]
# expect: adopted
steps = [1.0]
for number in range(DATA): steps.append(number + 2.0)
def f(x):
    for step in steps: x = x * step
    return x
