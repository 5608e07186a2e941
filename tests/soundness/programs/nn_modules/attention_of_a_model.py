# edit: heads, causal, scale = 2, False => heads, causal, scale = 1, False
# edit: 2, False, None => 2, True, None
# edit: 2, False, None => 2, False, 0.25
# same: torch.manual_seed(0) => torch.manual_seed(2)
F = torch.nn.functional
class Attention(torch.nn.Module):
    heads, causal, scale = 2, False, None
    def __init__(s):
        super().__init__()
        s.qkv = torch.nn.Linear(4, 12)
    def forward(s, x):
        q, k, v = (t.view(1, 4, s.heads, -1).transpose(1, 2) for t in s.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=s.causal, scale=s.scale)
        return y.transpose(1, 2).reshape(4, 4)
m = Attention()
results = infer(m, X)
