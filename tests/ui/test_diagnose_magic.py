"""`%nbcache diagnose`, the line: options and the expression, and what is no call."""

from __future__ import annotations

import pytest
from IPython.core.error import UsageError

from nbcache.ui.ipython.diagnose_magic import Line, _call_in, parse_line


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("model(x)", Line("model(x)")),
        ("  model(x)  --json", Line("model(x)", as_json=True)),
        (
            "model( x, mask = None ) --runs 5 --mode max-autotune",
            Line("model( x, mask = None )", "max-autotune", 5),
        ),
        ('f({"a b": x}, "it\'s --json")', Line('f({"a b": x}, "it\'s --json")')),
        ("f(x, 'a --runs 3')", Line("f(x, 'a --runs 3')")),
        ("f(x, 'a --runs 3') --runs 5", Line("f(x, 'a --runs 3')", runs=5)),
        ("model(x);", Line("model(x)")),
        ("f(x, - --y)--runs=3", Line("f(x, - --y)--runs=3")),
        ("f(x) --runs=3 --mode=lite", Line("f(x)", "lite", 3)),
        ("--runs 3 f(x, '--json') --mode lite", Line("f(x, '--json')", "lite", 3)),
        ("--json --mode=lite model(x)", Line("model(x)", "lite", as_json=True)),
    ],
)
def test_options_stand_before_or_after_and_the_expression_stays_as_it_is(line, expected):
    assert parse_line(line) == expected


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "`` is no call"),
        ("model(x) + 1", "`model(x) + 1` is no call"),
        ("model(x", "`model(x` is no call"),
        ("await model(x)", "`await model(x)` is no call"),
        ("model(x).sum()", "`model(x).sum` computes the function that it calls"),
        ("make()(x)", "`make()` computes the function that it calls"),
        ("model(x) --modes lite", "`model(x) --modes lite` is no call"),
        ("model(x) --runs", "`model(x) --runs` is no call"),
        ("model(x) --runs many", "`--runs` takes a number, from 1 on, and no `many`"),
        ("model(x) --runs 0", "`--runs` takes a number"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_a_next_step(line, said):
    with pytest.raises(UsageError) as caught:
        _call_in(parse_line(line).expression)

    assert said in str(caught.value)
    assert "such as %nbcache diagnose model(x)" in str(caught.value)
