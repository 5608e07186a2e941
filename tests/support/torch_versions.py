"""What there is with the torch that the tests run on."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from nbcache.torch_bridge.environment import release
from nbcache.torch_bridge.traces.state import TESTED

HAS_TRACES = release(version("torch")) in TESTED
needs_traces = pytest.mark.skipif(not HAS_TRACES, reason="there are no traces with this torch")
