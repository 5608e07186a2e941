# edit: [([Shard(0)], [Shard(0)])] => [([Replicate()], [Replicate()])]
# edit: BY = 3.0 => BY = 4.0
# edit: .cos() => .tanh()
# same: strategy => rule
# same: BY => FACTOR
# after: mesh
from torch.distributed.tensor.experimental import register_sharding
BY = 3.0
@torch.library.custom_op("mylib::op", mutates_args=())
def op(x: Tensor) -> Tensor:
    return x * 2
op.register_fake(lambda x: torch.empty_like(x))
@register_sharding(torch.ops.mylib.op.default)
def strategy(x):
    return [([Shard(0)], [Shard(0)])]
def handler(operator, args, kwargs):
    x, = args
    return DTensor.from_local(x.to_local().cos() * BY, x.device_mesh, x.placements, run_check=False)
DTensor._op_dispatcher._custom_op_handlers[torch.ops.aten.sin.default] = handler
def results(compile):
    x = DTensor.from_local(torch.ones(2, 2), mesh, [Shard(0)], run_check=False)
    with torch.no_grad():
        return [each.to_local() for each in compile(lambda x: (op(x), torch.sin(x)))(x)]
