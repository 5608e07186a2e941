"""Runs a call eager and compiled, and leaves what it works on as it was."""

from nbcache.torch_bridge.diagnosing.measure import Call, diagnose

__all__ = ["Call", "diagnose"]
