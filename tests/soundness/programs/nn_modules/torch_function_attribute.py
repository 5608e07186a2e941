# insert: F.relu.nbk = 2.0
F = torch.nn.functional
def f(x): return x * getattr(F.relu, "nbk", 3.0) + hasattr(F.gelu, "nbk")
