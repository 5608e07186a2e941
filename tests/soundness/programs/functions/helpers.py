# edit: x - 5.0 => x - 6.0
# edit: alias = deep => alias = mid
# edit: deep(x) * 2 => deep(x) * 3
# same: results = => unrelated = 3\ndef other(x): return x\nresults =
# expect: adopted
def deep(x): return x - 5.0
def mid(x): return deep(x) * 2
alias = deep
def f(x): return mid(x) + alias(x)
