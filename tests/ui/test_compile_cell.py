"""`%%compile_cached`, the line: options, completion, source and syntax tree, and cells through IPython."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from nbcache.torch_bridge import compile_options
from nbcache.ui.ipython.compile_cell import (
    HELP,
    HOOK,
    USAGE,
    CellTransformer,
    CompileOptions,
    TargetCompiler,
    check,
    check_callable,
    complete,
    insert_compile_calls,
    parse,
)

REPOSITORY = Path(__file__).parents[2]


class TestOptions:
    def test_every_option_is_read(self):
        options = parse(
            "f self.model --backend inductor --fullgraph --no-dynamic --device cuda:1 --name 'my cell' g"
            " --require-hit --no-save --quiet --options a=True --options triton.cudagraphs=false b=1"
        )
        assert options == CompileOptions(
            targets=("f", "self.model", "g"),
            fullgraph=True,
            dynamic=False,
            backend="inductor",
            options={"a": True, "triton.cudagraphs": False, "b": 1},
            device="cuda:1",
            name="my cell",
            require_hit=True,
            save=False,
            quiet=True,
        )

    def test_torch_gets_only_what_was_given_and_may_change_it(self):
        assert parse("").torch_arguments() == {}
        line = "--mode=max-autotune --dynamic --name n --device cpu"
        assert parse(line).torch_arguments() == {"mode": "max-autotune", "dynamic": True}
        options = parse("--fullgraph --backend eager --options a=1")
        options.torch_arguments()["options"].clear()
        assert options.torch_arguments() == {"options": {"a": 1}, "fullgraph": True, "backend": "eager"}

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("k=-1", -1),
            ("k=1e3", 1000.0),
            ("k=True", True),
            ("k=false", False),
            ("k=None", None),
            ("k=ATEN,TRITON", "ATEN,TRITON"),
            ("k=a=b", "a=b"),
            ("k=", ""),
            ("""k='"1"'""", "1"),
            ('k="two words"', "two words"),
            ("k=[1,2]", "[1,2]"),
            ("k=1if", "1if"),
        ],
    )
    def test_a_value_has_the_type_it_looks_like(self, text, value):
        (read,) = parse(f"--options {text}").options.values()
        assert read == value
        assert type(read) is type(value)

    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            ("--mod x", "unknown option `--mod`; did you mean `--mode`"),
            ("-m x", "unknown option `-m`"),
            ("--mode", "--mode: expected one argument"),
            ("--mode --quiet", "--mode: expected one argument"),
            ("--quiet=1", "--quiet: ignored explicit argument '1'"),
            ("--options a=1 --mode default", "`--mode` and `--options` exclude each other"),
            ("--options", "--options: expected at least one argument"),
            (
                "--options a=1 f",
                "`f` is not of the form KEY=VALUE; names of what to compile go before the options",
            ),
            ("--options =1", "`=1` is not of the form KEY=VALUE"),
            ("a=1", "`a=1` is not the name of a function or module"),
            ("f.", "`f.` is not the name"),
            ("class", "`class` is not the name"),
            ("--name 'open", "No closing quotation"),
        ],
    )
    def test_a_wrong_line_says_what_is_wrong_and_how_it_is_used(self, line, problem):
        with pytest.raises(UsageError) as caught:
            parse(line)
        message = str(caught.value)
        assert problem in message
        assert message.endswith(f"Usage: {USAGE}")
        assert "\n" not in message

    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            ("--options max_autotun=1", "unknown option `max_autotun`; did you mean `max_autotune`?"),
            ("--mode fast", "unknown mode `fast` (torch has default, max-autotune)"),
            ("--backend inducto", "unknown backend `inducto` (torch has eager, inductor); did you mean"),
            ("--options max-autotune=1 use_aoti=True", ""),
            ("--backend eager --options x=1", ""),
            ("--backend eager --mode x", ""),
        ],
    )
    def test_names_that_torch_does_not_know_are_named_with_the_nearest(self, torch_names, line, problem):
        if not problem:
            check(parse(line))
            return
        with pytest.raises(UsageError) as caught:
            check(parse(line))
        assert problem in str(caught.value)

    def test_the_help_has_every_option_of_the_documented_usage_line(self):
        assert HELP.startswith(USAGE) and "y.mean()            # shown" in HELP
        for flag in re.findall(r"--[\w-]+", USAGE):
            assert f"\n  {flag} " in HELP


@pytest.fixture
def torch_names(monkeypatch):
    """Have torch know few names."""
    names = ["max_autotune", *(f"cpp.option{number}" for number in range(20))]
    monkeypatch.setattr(compile_options, "known_modes", lambda: ["default", "max-autotune"])
    monkeypatch.setattr(compile_options, "known_options", lambda: names)
    monkeypatch.setattr(compile_options, "known_backends", lambda: ["eager", "inductor"])


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("mo", ["model"]),
        ("--n", ["--no-dynamic", "--name", "--no-save"]),
        ("--mode ma", ["max-autotune"]),
        ("--mode=ma", ["max-autotune"]),
        ("--backend ", ["eager", "inductor"]),
        ("--device cu", ["cuda"]),
        ("--name ", []),
        ("--options ma", ["max_autotune="]),
        ("--options max_autotune=T", ["True"]),
        (
            "--options max_autotune=True cpp.option1",
            ["cpp.option1=", *(f"cpp.option1{n}=" for n in range(10))],
        ),
        ("--options max_autotune=True --opt", ["--options"]),
    ],
)
def test_what_can_stand_at_the_cursor_is_offered(torch_names, line, offers):
    symbol = line.replace("=", " ").rpartition(" ")[2]
    found = complete(f"%%compile_cached {line}", symbol, lambda: ["model", "function"])
    assert found == offers


@pytest.mark.parametrize(
    "first", ["", "x = 1", "%%time", "%%compile_cached?", "%%compile_cached_not", "%compile_cached"]
)
def test_other_cells_stay_as_they_are(first):
    lines = [f"{first}\n", "1\n"]
    assert CellTransformer()(lines) == lines and CellTransformer()([]) == []


CALL = f"f = {HOOK}('f', f)"
LOOK = f"if 'f' in locals():\n    {CALL}"


@pytest.mark.parametrize(
    "source",
    [
        "def f(x):\n    return x\n@",
        "async def f(x):\n    return x\n@",
        "class f:\n    pass\n@",
        "f = g\n@\nf = h\n@\nf(x)",
        "f: object = g\n@",
        "f += g\n@",
        "g, (f, *h) = k\n@",
        "import f.g\n@",
        "from g import h as f\n@",
        "if c:\n    f = g\n    @\nelif d:\n    f = h\n    @\nelse:\n    pass",
        "for i in j:\n    f = g\n    @\nelse:\n    f = h\n    @",
        "while c:\n    f = g\n    @",
        "try:\n    f = g\n    @\nexcept E:\n    f = h\n    @\nelse:\n    f = i\n    @",
        "try:\n    pass\nfinally:\n    f = j\n    @",
        "match c:\n    case 1:\n        f = g\n        @",
        "for i, f in g:\n    f(x)",
        "with g as f:\n    f = h\n    @\n    f(x)",
        "f: int\nf[0] = g\nf.g = h\ng.f = h\ndel f\nimport g.f",
        "def g():\n    f = h",
        "class g:\n    f = h",
        "[f for f in g]",
        "try:\n    pass\nexcept g as f:\n    pass",
    ],
)
def test_a_call_follows_each_statement_that_binds_at_top_level(source):
    assert inserted(re.sub(r" *@\n|\n *@", "", source), "f") == source.replace("@", CALL)


def inserted(source, *targets, existing=()):
    tree = ast.parse(source)
    insert_compile_calls(tree, targets, existing)
    compile(tree, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return ast.unparse(tree)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("g()", f"{CALL}\ng()"),
        ("if c:\n    f = g", f"{CALL}\nif c:\n    f = g\n    {CALL}"),
        ("g = f\nf = h", f"{CALL}\ng = f\nf = h\n{CALL}"),
        ("g = 1\nf = g\nf(x)", f"g = 1\nf = g\n{CALL}\nf(x)"),
        ("f = h(f)", f"f = h(f)\n{CALL}"),
        ("from __future__ import annotations\nf(x)", f"from __future__ import annotations\n{CALL}\nf(x)"),
        ("from g import *\nf(x)", f"{CALL}\nfrom g import *\n{LOOK}\nf(x)"),
        (
            "get_ipython().run_line_magic('run', 'g.py')",
            f"{CALL}\nget_ipython().run_line_magic('run', 'g.py')\n{LOOK}",
        ),
        ("exec('f = 1')", f"{CALL}\nexec('f = 1')\n{LOOK}"),
    ],
)
def test_what_exists_is_compiled_first_unless_the_cell_replaces_it(source, expected):
    assert inserted(source, "f", existing=("f",)) == expected


def test_a_dotted_target_is_bound_by_its_own_assignment_or_else_by_its_roots():
    call = f"a.b = {HOOK}('a.b', a.b)"
    assert inserted("a = g()\na.b(x)", "a.b") == f"a = g()\n{call}\na.b(x)"
    assert inserted("a = g()\na.b = h\na.b(x)", "a.b") == f"a = g()\na.b = h\n{call}\na.b(x)"
    assert inserted("a.b(x)", "a.b", existing=("a.b",)) == f"{call}\na.b(x)"
    assert inserted("a.c = 1", "a.b") == "a.c = 1"


def test_a_call_has_the_line_of_the_statement_that_it_follows():
    tree = ast.parse("\n\n@d\ndef f():\n    pass\nfor i in (\n    1,\n):\n    f = i")
    insert_compile_calls(tree, ["f"], [])
    assert [n.lineno for n in ast.walk(tree) if isinstance(n, ast.Call)] == [4, 9]


class Cells:
    """Runs cells in a shell with both transformers, and a compiler that records."""

    def __init__(self, shell, capsys):
        self.shell = shell
        self.options: list[CompileOptions] = []
        self.compiled: list[str] = []
        self._capsys = capsys
        shell.input_transformers_cleanup.append(CellTransformer())
        shell.ast_transformers.append(
            TargetCompiler(lambda: shell.user_ns, self.compile, self.options.append)
        )

    def compile(self, target, function):
        check_callable(target, function)
        self.compiled.append(target)
        return lambda *args: ("compiled", function(*args))

    def run(self, source):
        """Run a cell; return its result and everything it wrote."""
        result = self.shell.run_cell(source)
        captured = self._capsys.readouterr()
        return result, captured.out + captured.err


@pytest.fixture
def cells(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setattr(sys, "displayhook", sys.displayhook)
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    shell = InteractiveShell(config=config)
    yield Cells(shell, capsys)
    shell.restore_sys_module_state()


@pytest.mark.parametrize(
    "sources",
    [
        ("%%compile_cached f --fullgraph\ndef f(x):\n    return 2\nf('ab')",),
        ("f = len", "%%compile_cached f\nf('ab')"),
        ("f = None", "%%compile_cached f\nif f is None:\n    f = len\nf('ab')"),
        ("%%compile_cached f\nimport asyncio\nf = await asyncio.sleep(0, len)\nf('ab')",),
        ("%%compile_cached box.f\nfrom types import SimpleNamespace as S\nbox = S(f=len)\nbox.f('ab')",),
        ("%%compile_cached f\nexec('f = len')\nf('ab')",),
        ("%%compile_cached f\n%time f = len\nf('ab')",),
        ("%%time\n%%compile_cached f\nf = len\nf('ab')",),
        ("\n\n    %%compile_cached f\n    f = len\n    f('ab')",),
        ("%%compile_cached f\nf = len", "%reset -f", "%%compile_cached f\nf = len\nf('ab')"),
    ],
)
def test_a_target_is_compiled_before_the_cells_own_calls(cells, sources):
    *before, last = sources
    for source in before:
        cells.run(source)
    result, output = cells.run(last)
    assert result.result == ("compiled", 2)
    assert "('compiled', 2)" in output


def test_an_error_shows_once_with_its_line(cells):
    result, output = cells.run("%%compile_cached\nx = 1\n1 / 0\nx = 2")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    assert output.count("ZeroDivisionError: division by zero") == 1
    assert "----> 3 1 / 0" in output and cells.shell.user_ns["x"] == 1
    result, output = cells.run("%%compile_cached\nx = 1\nx = = 1")
    assert isinstance(result.error_before_exec, SyntaxError)
    assert (result.error_before_exec.lineno, output.count("SyntaxError")) == (3, 1)


@pytest.mark.parametrize(
    ("source", "problem", "runs"),
    [
        ("%%compile_cached\n  \n", "the cell is empty", False),
        ("%%compile_cached\n%%time\nran = True", "`%%time` goes above this line", False),
        ("%%compile_cached --fulgraph\nran = True", "did you mean `--fullgraph`", False),
        ("%%compile_cached nthing\nran = True", "`nthing` does not exist, and the cell does not bind", False),
        ("%%compile_cached numbr\nran = True", "at top level; did you mean `number`?", False),
        ("%%compile_cached box.f\nran = True", "`box.f` does not exist", False),
        ("%%compile_cached f number\nf = len\nran = True", "`number` cannot be called (int)", False),
        ("%%compile_cached Class\nran = True", "`Class` is a class", False),
        ("%%compile_cached f\nran = True\nf = 3\nlater = True", "`f` cannot be called (int)", True),
        ("%%compile_cached f\nran = True\nclass f: pass\nlater = True", "`f` is a class", True),
    ],
)
def test_a_wrong_cell_stops_with_one_line_as_soon_as_that_is_known(cells, source, problem, runs):
    names = cells.shell.user_ns
    names.update(number=3, Class=Path, box=object())
    result, output = cells.run(source)
    assert isinstance(result.error_in_exec if runs else result.error_before_exec, UsageError)
    assert problem in output and output.startswith("UsageError: %%compile_cached: ")
    assert output.count("\n") == 1
    assert ("ran" in names, "later" in names) == (runs, False)
    cells.run("%%compile_cached\n1")
    assert cells.options[-1] == CompileOptions()  # nothing is unregistered


def test_a_nested_cell_does_not_get_the_options(cells):
    cells.run("%%compile_cached f\nf = len\nnested = get_ipython().run_cell('f = abs; f(-1)').result\n")
    assert cells.shell.user_ns["nested"] == 1
    assert cells.compiled == ["f", "f"]  # after `f = len`, and after the nested cell
    assert len(cells.options) == 1


@pytest.mark.parametrize("interactivity", ["all", "last_expr", "last"])
def test_only_what_the_cell_shows_is_shown(cells, interactivity):
    cells.shell.ast_node_interactivity = interactivity
    _, output = cells.run("%%compile_cached f\nf = len\n1 + 1")
    assert [line.partition(":")[2] for line in output.splitlines()] == [" 2"]


def test_a_prompt_takes_the_cell_for_any_cell_magic(cells):
    assert cells.shell.check_complete("%%compile_cached --wrong") == ("incomplete", "")
    assert cells.shell.check_complete("%%compile_cached f\nf(x)") == ("incomplete", "")
    assert cells.shell.check_complete("%%compile_cached f\nf(x)\n\n")[0] == "complete"


SET_UP = """
from nbcache.ui.ipython.compile_cell import CellTransformer, TargetCompiler
shell = get_ipython()
compiled = lambda target, value: lambda *args: ("compiled", value(*args))
shell.input_transformers_cleanup.append(CellTransformer())
shell.ast_transformers.append(TargetCompiler(lambda: shell.user_ns, compiled, lambda options: None))
"""


def test_in_a_notebook_a_wrong_line_is_an_error_output_of_one_line():
    sources = [
        SET_UP,
        "%%compile_cached f\nimport asyncio\nawait asyncio.sleep(0)\nf = len\nf('ab')",
        "%%compile_cached\nawait asyncio.sleep(0)\n1 / 0",
        "%%compile_cached --fulgraph\n1",
        "%%compile_cached nothing\nawait asyncio.sleep(0)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    resources = {"metadata": {"path": str(REPOSITORY)}}
    options: dict[str, Any] = {"kernel_name": "python3", "timeout": 60, "allow_errors": True}
    nbclient.NotebookClient(notebook, resources=resources, **options).execute()
    (shown,), (raised,), *wrong = [cell.outputs for cell in notebook.cells[1:]]
    assert shown.data["text/plain"] == "('compiled', 2)"
    assert raised.ename == "ZeroDivisionError" and "3" in "".join(raised.traceback)
    for (output,) in wrong:
        assert (output.output_type, output.ename) == ("error", "UsageError")
        assert output.traceback == [f"UsageError: {output.evalue}"]
