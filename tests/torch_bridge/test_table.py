"""The table of hooks: the documentation shows it, and each part in it can be found by its name."""

from __future__ import annotations

from pathlib import Path

from nbcache.parts import PARTS
from nbcache.torch_bridge.hooks import Hook, Loss, Part
from nbcache.torch_bridge.torch_behavior import MINIMUM, NEWEST, TORCHBEHAVIOR, answers, spelled

ARCHITECTURE = Path(__file__).parents[2] / "docs" / "architecture.md"
HEAD = "| part | torch | replaces | for | without it | off as well |\n| --- | --- | --- | --- | --- | --- |\n"
RELEASES = {name: text for name, _, text, _ in answers()}


def place(hook: Hook) -> str:
    return f"`{hook.module.removeprefix('torch.')}:{hook.path}`"


def row(part: Part) -> str:
    more = "; ".join(filter(None, ("" if part.loss is Loss.PART else part.loss.value, part.because)))
    if part.instead:
        more += f"; with `{part.instead}` off, too, {Loss.ALL.value}"
    tested = RELEASES.get(part.flag, f"{spelled(MINIMUM)} to {spelled(NEWEST)}")
    replaced = ", ".join(map(place, part.places())) or "–"
    cells = (f"`{part.name}`", tested, replaced, part.purpose, part.without, more or "–")
    return f"| {' | '.join(cells)} |\n"


def test_the_documentation_shows_the_table() -> None:
    table = HEAD + "".join(map(row, PARTS))
    assert table in ARCHITECTURE.read_text(), f"docs/architecture.md is to have\n\n{table}"


def test_parts_name_others_that_are_there_and_flags_that_are_there() -> None:
    names = [part.name for part in PARTS]
    assert len({*names}) == len(names)
    for part in PARTS:
        assert {*part.needs} | {*filter(None, [part.instead])} <= {*names}
        assert not part.flag or hasattr(TORCHBEHAVIOR, part.flag)
