"""Hooks into torch that record and serve artifacts.

Only this package, `keys` and `traces` import torch, and they do so lazily.

They touch private parts of torch as they are in 2.11.0, 2.12.1, 2.13.0, 2.14.1 and 2.15.0, with Triton 3.6 to
3.9; `make test-torch` runs the tests on each. A part of nbcache that another torch has no place for is off.
"""
