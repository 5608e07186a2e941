# cases: 2
torch.save({"w": torch.ones(4, 4 + CASE % 2), "bias": CASE > 1}, "weights.pt")
STATE = torch.load("weights.pt")
def f(x): return x.mm(STATE["w"]) + (1 if STATE["bias"] else 0)
