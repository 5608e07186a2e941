# edit: found * 2.0 => found * 3.0
# insert: m._forward_hooks.clear()
# same: results = => other.register_forward_pre_hook(print)\nresults =
# expect: adopted
m = torch.nn.Linear(4, 4)
other = torch.nn.Linear(4, 4)
m.register_forward_hook(lambda module, given, found: found * 2.0)
def f(x): return m(x)
