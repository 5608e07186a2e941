"""The only package that imports torch, and it does so lazily: when torch is there already, or is needed."""

from nbcache.torch_bridge.bridge import TorchBridge

__all__ = ["TorchBridge"]
