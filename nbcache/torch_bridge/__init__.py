"""Hooks into torch that record and serve artifacts.

Only this package, `keys` and `traces` import torch, and they do so lazily.

They use private APIs of torch 2.11.0, 2.12.1, 2.13.0, 2.14.1 and 2.15.0, with Triton 3.6 to 3.9;
`make test-torch` tests each. If another torch lacks an API, the part of nbcache that needs it is off.
"""
