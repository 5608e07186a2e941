"""The format of traces: golden bytes, values and code, and what readers do with bytes that are wrong."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nbcache.core.errors import CorruptEntry, FormatError, UnsupportedVersion
from nbcache.traces.format import (
    code_from,
    code_to,
    from_bytes,
    names_from,
    names_to,
    to_bytes,
    value_from,
    value_to,
)

GOLDEN = (Path(__file__).parents[1] / "golden" / "trace-1.json").read_bytes()


def changed(**fields: Any) -> bytes:
    return json.dumps({**json.loads(GOLDEN), **fields}).encode()


def test_golden_bytes_are_read_and_written_as_ever() -> None:
    trace = from_bytes(GOLDEN)

    assert (trace.key, trace.function, trace.operators, trace.has_outputs) == ("k00", "f", 2, 1)
    assert trace.sources[2] == ["AttrSource", 0, {"member": "T"}]
    assert trace.imports == {"__import_torch": "torch"}
    assert to_bytes(trace) == GOLDEN


def test_a_graph_break_comes_back() -> None:
    trace = replace(from_bytes(GOLDEN), break_reason="it prints", break_line=3)

    assert from_bytes(to_bytes(trace)) == trace
    assert from_bytes(GOLDEN).break_reason == ""
    for wrong in ({"break_reason": 1}, {"break_line": -1}, {"break_line": "3"}):
        with pytest.raises(CorruptEntry):
            from_bytes(changed(**wrong))


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 0, -1, 1 << 80, "", "text", 0.1, -0.0, float("inf"), 1 - 2j, b"\0\xff", ...),
        *((), (1, (2.0, "x")), [1, [None]], frozenset({1, "a"}), slice(None, 3, None)),
    ],
)
def test_values_of_pythons_own_come_back(value: Any) -> None:
    written = json.loads(json.dumps(value_to(value)))

    found = value_from(written)

    assert found == value and type(found) is type(value)
    assert str(found) == str(value) or isinstance(value, frozenset)


@pytest.mark.parametrize("value", [float("nan"), -float("nan"), complex(-float("nan"), 1.0)])
def test_bits_of_a_nan_come_back(value: Any) -> None:
    found = value_from(json.loads(json.dumps(value_to(value))))

    assert struct.pack(">d", found.real) == struct.pack(">d", value.real)
    assert struct.pack(">d", found.imag) == struct.pack(">d", value.imag)


def test_code_comes_back_and_runs() -> None:
    def f(x: int, *, k: int = 2) -> list[int]:
        return [each * k for each in range(x)]

    found = code_from(json.loads(json.dumps(code_to(f.__code__))))

    assert found == f.__code__
    assert (found.co_qualname, [*found.co_positions()]) == (
        f.__code__.co_qualname,
        [*f.__code__.co_positions()],
    )


@pytest.mark.parametrize("value", [object(), {1: 2}, int, {1}])
def test_what_is_not_pythons_own_is_refused(value: Any) -> None:
    with pytest.raises(FormatError, match="cannot contain"):
        value_to(value)


@pytest.mark.parametrize(
    "text",
    [
        *("[]", "{}", "1.5", '["float"]', '["float", "x"]', '["float", 1]', '["complex", "0x1"]'),
        *('["bytes", "é"]', '["bytes"]', '["unknown", 1]', "[1]", '["tuple", ["float"]]', '["slice"]'),
        *('["frozenset", ["list"]]', '["frozenset", ["list", 1]]', '["code", {}]', '["code"]'),
    ],
)
def test_a_row_that_stands_for_no_value_is_corrupt(text: str) -> None:
    with pytest.raises(CorruptEntry):
        value_from(json.loads(text))


@pytest.mark.parametrize("name", ["co_code", "co_consts", "co_flags", "co_name", "co_linetable"])
def test_code_with_a_field_of_another_type_is_corrupt(name: str) -> None:
    row = code_to((lambda: 1).__code__)
    with pytest.raises(CorruptEntry):
        code_from({**row, name: None})
    with pytest.raises(CorruptEntry):
        code_from({key: value for key, value in row.items() if key != name})


@pytest.mark.parametrize(
    "fields",
    [
        {"sources": {"common": [["AttrSource", {}]], "rows": [[0, 0]]}},
        {"sources": {"common": [["LocalSource"]], "rows": [[None, 0]]}},
        {"sources": {"common": [[1, {}]], "rows": [[None, 0]]}},
        *({"same": [0, 1]}, {"same": [0, 1, 3]}, {"same": [0, 1, True]}),
        *({"inputs": [3]}, {"inputs": [-1]}, {"key_order": ["0"]}),
        {"guards": {"common": [["ID_MATCH", [], {}]], "rows": [[3, 0]]}},
        {"guards": {"common": [["ID_MATCH", [], {}]], "rows": [["0", 0]]}},
        {"guards": {"common": [["ID_MATCH"]], "rows": [[0, 0]]}},
        {"facts": [[0, "int 1"]]},
        {"facts": {"common": ["int 1"], "rows": [[0]]}},
        {"facts": {"common": ["int 1"], "rows": [[0, 1]]}},
        {"facts": {"common": ["int 1"], "rows": [[0, True]]}},
        {"facts": {"rows": []}},
        {"facts": {"common": ["int 1"], "rows": [[3, 0]]}},
        {"facts": {"common": ["int 1"], "rows": [[None, 0]]}},
        {"facts": {"common": [1], "rows": [[0, 0]]}},
        *({"shapes": [[3, None, None]]}, {"names": [["", "K"]]}, {"names": [["", "K", 1]]}),
        *({"attributes": "none"}, {"attributes": [["torch"]]}, {"asked": None}, {"replayed": [1]}),
        *({"installed": [["a", "graph", 1]]}, {"imports": {"a": 1}}, {"imports": []}, {"code": []}),
        *({"operators": -1}, {"state": None}, {"function": 1}, {"key": None}, {"format": "manifest"}),
    ],
)
def test_a_trace_with_a_field_that_is_wrong_is_corrupt(fields: dict[str, Any]) -> None:
    with pytest.raises(CorruptEntry):
        from_bytes(changed(**fields))


@pytest.mark.parametrize("length", range(0, len(GOLDEN), 61))
def test_a_trace_that_was_cut_short_is_corrupt(length: int) -> None:
    with pytest.raises(CorruptEntry):
        from_bytes(GOLDEN[:length])


def test_a_later_version_is_not_read() -> None:
    with pytest.raises(UnsupportedVersion):
        from_bytes(changed(version=2))


def test_any_texts_are_names_and_identifiers_are_as_they_are() -> None:
    assert names_from(from_bytes(GOLDEN).asked) == {"NEW", "fast", "sin"}
    assert names_to(["sin", "K_1"]) == "K_1 sin"
    odd = {"", "%", "%00", "\0", "a b", "a-b", "0x", "\n", "größe", "\ud800", "a%20b"}
    assert names_from(names_to(odd)) == odd
    assert names_from(names_to([])) == set()
