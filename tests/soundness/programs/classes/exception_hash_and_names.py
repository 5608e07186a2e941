# edit: RAISED = E2 => RAISED = E1
# edit: E2: 3.0 => E2: 4.0
# insert: E2.__name__ = 'Longer'
class E1(Exception): pass
class E2(E1): pass
HANDLERS = {E1: 2.0, E2: 3.0}
def f(x):
    try: raise RAISED()
    except E1 as e: return x * HANDLERS[type(e)] + len(type(e).__name__) + issubclass(RAISED, E2)
RAISED = E2
