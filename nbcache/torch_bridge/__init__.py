"""The only package that imports torch, and it does so lazily: when torch is there already, or is needed.

Of torch's private parts it touches what is in torch 2.11.0, 2.12.1, 2.13.0, 2.14.1 and 2.15.0, with Triton
3.6 to 3.9; `make test-torch` runs the tests on each. What belongs together is one part of nbcache
(`patches.Patches`): where another torch has no place for it, or calls it otherwise, nbcache goes without it.
"""

from nbcache.torch_bridge.bridge import TorchBridge

__all__ = ["TorchBridge"]
