# edit: LIMIT = 3 => LIMIT = 1
# edit: v < LIMIT => v > LIMIT
LIMIT = 3
def check(v):
    assert v < LIMIT, "too much"
    return v
def f(x):
    try: return x * check(2)
    except AssertionError: return x * 9
