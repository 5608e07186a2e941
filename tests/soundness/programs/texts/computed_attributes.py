# insert: h.w_2 = 5.0
# edit: 2.0, 3.0 => 2.0, 4.0
# edit: PRE = "w_" => PRE = "v_"\nh.v_1 = 6.0
#  and: x + h.w_9 => x + h.v_9
class H: pass
h = H()
h.w_0, h.w_1 = 2.0, 3.0
PRE = "w_"
def f(x):
    for i in range(3):
        name = PRE + str(i)
        if hasattr(h, name): x = x * 2 + getattr(h, name)
    setattr(h, f"{PRE}9", 4.0)
    return x + h.w_9
