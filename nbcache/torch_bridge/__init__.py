"""The only package that imports torch, and it does so lazily: when torch is there already, or is needed.

It touches private parts of torch as they are in 2.11.0, 2.12.1, 2.13.0, 2.14.1 and 2.15.0, with Triton 3.6 to
3.9; `make test-torch` runs the tests on each. A part of nbcache that another torch has no place for is off.
"""

from nbcache.torch_bridge.bridge import TorchBridge

__all__ = ["TorchBridge"]
