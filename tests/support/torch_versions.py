"""What there is with the torch that the tests run on."""

from __future__ import annotations

import pytest

from nbcache.torch_bridge.torch_behavior import TORCHBEHAVIOR

HAS_TRACES = TORCHBEHAVIOR.has_traces
needs_traces = pytest.mark.skipif(not HAS_TRACES, reason="there are no traces with this torch")
