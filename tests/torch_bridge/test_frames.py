"""Each local variable of torch's that nbcache reads is there while torch looks a graph up."""

from __future__ import annotations

import json

import pytest

from nbcache.torch_bridge import frames
from support.front_door import environ_below, run_interpreter

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


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """Return the type of each variable's value, by the variable."""
    folder = tmp_path_factory.mktemp("frames")
    listed = ", ".join(f"frames.Local{tuple(local)!r}" for local in LOCALS.values())
    program = LOOKS_UP.replace("in LOCALS}", f"in [{listed}]}}")
    done = run_interpreter(["-c", program], environ_below(folder), folder)
    assert done.returncode == 0, done.stderr
    found: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", LOCALS)
def test_torch_has_the_variable(name: str, kinds: dict[str, str | None]) -> None:
    kind = kinds[" ".join(LOCALS[name])]
    assert kind is not None and kind == KINDS.get(name, kind)
