"""Each local variable of torch's that nbcache reads is there while torch looks a graph up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nbcache.torch_bridge import frames
from support.front_door import run_interpreter

pytestmark = pytest.mark.compile

LOCALS = {name: local for name, local in vars(frames).items() if isinstance(local, frames.Local)}
LOCALS |= {f"COMPILERS {local.name}": local for local in frames.COMPILERS}
KINDS = {
    "CODE": "code",
    "FRAME_GLOBALS": "dict",
    "FRAME_LOCALS": "dict",
    "LOOKED_UP_KEY": "str",
    "ONE_GRAPH": "bool",
}
LOOKS_UP = """\
import json, torch
from nbcache.torch_bridge import frames
from torch._inductor.codecache import FxGraphCache
read = {}
def look(local):
    value = frames.read(local)
    return None if value is None else type(value).__name__
def find(*args):
    read.update({" ".join(local): look(local) for local in LOCALS})
    raise Looked
class Looked(Exception):
    pass
FxGraphCache.find_guarded_entry = find
try:
    torch.compile(lambda x: x + 1, fullgraph=True)(torch.ones(3))
except Exception:
    pass
print(json.dumps(read))
"""


def test_torch_has_each_variable(isolated: dict[str, str], tmp_path: Path) -> None:
    listed = ", ".join(f"frames.Local{tuple(local)!r}" for local in LOCALS.values())
    program = LOOKS_UP.replace("in LOCALS}", f"in [{listed}]}}")
    done = run_interpreter(["-c", program], isolated, tmp_path)
    assert done.returncode == 0, done.stderr
    kinds = json.loads(done.stdout.splitlines()[-1])
    for name, local in LOCALS.items():
        kind = kinds[" ".join(local)]
        assert kind is not None and kind == KINDS.get(name, kind), name
