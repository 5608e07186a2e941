# edit: manual_seed(3) => manual_seed(4)
# edit: enabled(True) => enabled(False)
# edit: limit = 8 => limit = 9
# edit: LEAF * 2.0 => LEAF * 3.0
# edit: [1.0 + 2.0j]) => [1.0 + 2.0j]).conj()
# same: fast => quick
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
torch.manual_seed(3)
torch.backends.mha.set_fastpath_enabled(True)
torch._dynamo.config.recompile_limit = 8
COMPLEX = torch.tensor([1.0 + 2.0j])
LEAF = torch.ones(1, requires_grad=True)
(LEAF * 2.0).sum().backward()
def of(config):
    return config.recompile_limit
def told():
    with unset_fake_temporarily(), disable_proxy_modes_tracing():
        return COMPLEX.sum().item().imag + LEAF.grad.item()
def backward(ctx, g):
    fast = 2.0 if torch.backends.mha.get_fastpath_enabled() else 3.0
    return g * (torch.initial_seed() % 97) * fast * of(torch._dynamo.config) * told()
@torch.library.custom_op("mylib::op", mutates_args=())
def op(x: Tensor) -> Tensor:
    return x * 2.0
op.register_fake(lambda x: torch.empty_like(x))
op.register_autograd(backward)
results = train(lambda x, w: op(x).mm(w), X, W)
AGAINST = "cold"
