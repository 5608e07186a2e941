# edit: SDPBackend.MATH] => SDPBackend.FLASH_ATTENTION]
# edit: with sdpa_kernel(CHOSEN): => if True:
# edit: set_fastpath_enabled(True) => set_fastpath_enabled(False)
# same: CHOSEN => USED
from torch.nn.attention import SDPBackend, sdpa_kernel
CHOSEN = [SDPBackend.MATH]
torch.backends.mha.set_fastpath_enabled(True)
def results(compile):
    f = compile(lambda q: torch.nn.functional.scaled_dot_product_attention(q, q, q))
    with sdpa_kernel(CHOSEN):
        return infer(lambda q: f(q), torch.randn(1, 2, 16, 16))(lambda g: g)
AGAINST = "cold"
