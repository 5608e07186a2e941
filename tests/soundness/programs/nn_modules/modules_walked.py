# edit: Top(2.0) => Top(3.0)
# insert: m.mid.leaf.eval()
# insert: m.mid.other = Leaf(7.0)
nn = torch.nn
class Leaf(nn.Module):
    def __init__(s, k): super().__init__(); s.k = k
class Mid(nn.Module):
    def __init__(s, k): super().__init__(); s.leaf = Leaf(k)
class Top(nn.Module):
    def __init__(s, k): super().__init__(); s.mid = Mid(k)
    def forward(s, x):
        for n, m in s.named_modules():
            if isinstance(m, Leaf): x = x * m.k + len(n)
        for m in s.modules(): x = x + m.training
        for n, m in s.named_children(): x = x * 2 + len(n)
        return x
m = Top(2.0)
results = infer(m, X)
