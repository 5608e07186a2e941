MODE = "default"
AGAINST = "cold"
import torch._inductor.config as config
config.fallback_by_default = True
aten = torch.ops.aten

class Named(torch._inductor.custom_graph_pass.CustomGraphPass):
    def uuid(self):
        return "always the same"

