# edit: S = 0.5 => S = 0.25
# insert: torch.backends.cuda.enable_math_sdp(False)
from torch.nn.attention import sdpa_kernel, SDPBackend
B = SDPBackend.MATH
def f(x):
    q = x.view(1, 1, 4, 4)
    with sdpa_kernel(B): y = torch.nn.functional.scaled_dot_product_attention(q, q, q, scale=S)
    return y * 2 if torch.backends.cuda.math_sdp_enabled() else y * 3
S = 0.5
