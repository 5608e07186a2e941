import functools, math, sys, types
import torch
from torch import Tensor
torch.manual_seed(0)
X = torch.randn(4, 4)
W = torch.randn(4, 4)

def infer(f, *inputs):
    def results(compile):
        with torch.no_grad():
            found = compile(f)(*[each.clone() for each in inputs])
        return list(found) if isinstance(found, (tuple, list)) else [found]
    return results

def train(f, *inputs):
    def results(compile):
        leaves = [each.clone().requires_grad_() for each in inputs]
        found = compile(f)(*leaves)
        found.square().sum().backward()
        return [found.detach(), *(each.grad for each in leaves if each.grad is not None)]
    return results

