# edit: N = 2 => N = 3
# edit:  from e =>
# edit:  from e =>  from KeyError()
class Low(Exception): pass
class High(Exception): pass
def f(x):
    try:
        try: raise Low("a", N)
        except Low as e: raise High(e.args[1] * 2) from e
    except High as e:
        x = x * e.args[0]
        return x * 2 if type(e.__cause__) is Low else x * 3
N = 2
