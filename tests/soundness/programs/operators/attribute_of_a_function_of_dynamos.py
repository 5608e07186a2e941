# insert: g.flag = 2.0
g = torch._dynamo.graph_break
def f(x): return x * 2 if hasattr(g, "flag") else x * 3
