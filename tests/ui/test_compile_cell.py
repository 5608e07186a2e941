"""`%%compile_cached`, the line: options, completion, source and syntax tree, and cells through IPython."""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
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
    def test_every_option_is_read(self) -> None:
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

    def test_torch_gets_only_what_was_given_and_may_change_it(self) -> None:
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
    def test_a_value_has_the_type_it_looks_like(self, text: str, value: object) -> None:
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
            ("--options a=1 f", "`f` is not K=V (targets go before `--options`)"),
            ("--options =1", "`=1` is not K=V"),
            ("a=1", "`a=1` is not the name of a function or module"),
            ("f.", "`f.` is not the name"),
            ("class", "`class` is not the name"),
            ("--name 'open", "No closing quotation"),
        ],
    )
    def test_a_wrong_line_says_what_is_wrong_and_how_it_is_used(self, line: str, problem: str) -> None:
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
    def test_names_that_torch_does_not_know_are_named_with_the_nearest(
        self, torch_names: None, line: str, problem: str
    ) -> None:
        if not problem:
            check(parse(line))
            return
        with pytest.raises(UsageError) as caught:
            check(parse(line))
        assert problem in str(caught.value)

    def test_the_help_has_every_option_of_the_documented_usage_line(self) -> None:
        assert HELP.startswith(USAGE) and "y.mean()            # shown" in HELP
        for flag in re.findall(r"--[\w-]+", USAGE):
            assert f"\n  {flag} " in HELP


@pytest.fixture
def torch_names(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_what_can_stand_at_the_cursor_is_offered(torch_names: None, line: str, offers: list[str]) -> None:
    symbol = line.replace("=", " ").rpartition(" ")[2]
    found = complete(f"%%compile_cached {line}", symbol, lambda: ["model", "function"])
    assert found == offers


class TestTransformer:
    def transform(self, *lines: str) -> list[str]:
        return CellTransformer()([f"{line}\n" for line in lines])

    def test_the_line_becomes_a_literal_and_the_rest_stays_in_place(self) -> None:
        lines = self.transform("%%compile_cached f --name 'a b'", "", "y = f(x)")
        assert [ast.literal_eval(lines[0]), *lines[1:]] == [
            "nbcache: %%compile_cached f --name 'a b'",
            "\n",
            "y = f(x)\n",
        ]

    @pytest.mark.parametrize(
        "first",
        [
            "",
            "x = 1",
            "%%time",
            "%%compile_cached?",
            "%%compile_cached??",
            "%%compile_cached_not",
            "%compile_cached",
        ],
    )
    def test_other_cells_stay_as_they_are(self, first: str) -> None:
        assert self.transform(first, "1") == [f"{first}\n", "1\n"]
        assert CellTransformer()([]) == []

    def test_an_empty_cell_is_an_error(self) -> None:
        with pytest.raises(UsageError, match=r"the cell is empty: .*Usage: %%compile_cached \[TARGET …\]"):
            self.transform("%%compile_cached", "", "  ")

    def test_another_cell_magic_goes_above(self) -> None:
        with pytest.raises(UsageError, match="`%%time` goes above this line"):
            self.transform("%%compile_cached", "%%time", "1")


def inserted(source: str, *targets: str, existing: tuple[str, ...] = ()) -> str:
    tree = insert_compile_calls(ast.parse(textwrap.dedent(source)), targets, existing, "hook")
    compile(tree, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return ast.unparse(tree)


CALL = "f = hook('f', f)"


class TestInsertion:
    @pytest.mark.parametrize(
        "statement",
        [
            "def f(x):\n    return x",
            "async def f(x):\n    return x",
            "class f:\n    pass",
            "f = g",
            "f: object = g",
            "f += g",
            "g, (f, *h) = k",
            "g, *f = k",
            "g = f = h",
            "import f",
            "import f.g",
            "import g as f",
            "from g import f",
            "from g import h as f",
        ],
    )
    def test_a_call_follows_each_statement_that_binds(self, statement: str) -> None:
        assert inserted(f"{statement}\nf(x)", "f") == f"{statement}\n{CALL}\nf(x)"

    @pytest.mark.parametrize(
        "source",
        [
            "g = f",
            "f: int",
            "f[0] = g",
            "f.g = h",
            "g.f = h",
            "del f",
            "def g():\n    f = h",
            "class g:\n    f = h",
            "lambda: (f := g)",
            "[f for f in g]",
            "try:\n    pass\nexcept g as f:\n    pass",
            "import g.f",
            "ff = 1",
        ],
    )
    def test_nothing_follows_what_does_not_bind_at_top_level(self, source: str) -> None:
        assert inserted(source, "f") == source

    @pytest.mark.parametrize(
        "source",
        [
            "if c:\n    f = g\n    @\nelif d:\n    f = h\n    @\nelse:\n    pass",
            "for i in j:\n    f = g\n    @\nelse:\n    f = h\n    @",
            "while c:\n    f = g\n    @",
            "with c:\n    f = g\n    @",
            "try:\n    f = g\n    @\nexcept E:\n    f = h\n    @\nelse:\n    f = i\n    @",
            "try:\n    pass\nfinally:\n    f = j\n    @",
            "match c:\n    case 1:\n        f = g\n        @",
            "for f in g:\n    @\n    f(x)",
            "for i, f in g:\n    @\n    f(x)",
            "with g as f:\n    @\n    f(x)",
            "async with g as (f, h):\n    @\n    f(x)",
            "async for f in g:\n    @\n    f(x)",
        ],
    )
    def test_a_call_joins_the_block_that_binds(self, source: str) -> None:
        assert inserted(re.sub(r" *@\n|\n *@", "", source), "f") == source.replace("@", CALL)

    def test_every_binding_of_every_target_is_compiled(self) -> None:
        assert inserted("f = a\ng = b\nf = g", "f", "g") == (
            f"f = a\n{CALL}\ng = b\ng = hook('g', g)\nf = g\n{CALL}"
        )

    @pytest.mark.parametrize("source", ["f(x)", "g()", "if c:\n    f = g", "g = f\nf = h"])
    def test_what_exists_is_compiled_first(self, source: str) -> None:
        assert inserted(source, "f", existing=("f",)).startswith(f"{CALL}\n")

    @pytest.mark.parametrize("source", ["def f(): f()", "g = 1\nf = g\nf(x)", "f = h(f)"])
    def test_what_exists_is_left_alone_where_the_cell_replaces_it_unused(self, source: str) -> None:
        assert not inserted(source, "f", existing=("f",)).startswith(CALL)

    def test_a_future_import_stays_first(self) -> None:
        source = "from __future__ import annotations\nf(x)"
        assert inserted(source, "f", existing=("f",)) == f"from __future__ import annotations\n{CALL}\nf(x)"

    def test_a_dotted_target_is_bound_by_its_own_assignment_or_else_by_its_roots(self) -> None:
        call = "a.b = hook('a.b', a.b)"
        assert inserted("a = g()\na.b(x)", "a.b") == f"a = g()\n{call}\na.b(x)"
        assert inserted("a = g()\na.b = h\na.b(x)", "a.b") == f"a = g()\na.b = h\n{call}\na.b(x)"
        assert inserted("a.b(x)", "a.b", existing=("a.b",)) == f"{call}\na.b(x)"
        assert inserted("a.c = 1", "a.b") == "a.c = 1"

    @pytest.mark.parametrize(
        "line", ["from g import *", "get_ipython().run_line_magic('run', 'g.py')", "exec('f = 1')"]
    )
    def test_what_may_have_bound_it_is_followed_by_a_look(self, line: str) -> None:
        look = f"if 'f' in locals():\n    {CALL}"
        assert inserted(f"{line}\nf(x)", "f") == f"{line}\n{look}\nf(x)"
        assert inserted(f"{line}\nf(x)", "f", existing=("f",)) == f"{CALL}\n{line}\n{look}\nf(x)"

    def test_a_call_has_the_line_of_the_statement_that_it_follows(self) -> None:
        tree = ast.parse("\n\n@d\ndef f():\n    pass\nfor f in (\n    1,\n): f")
        insert_compile_calls(tree, ["f"], [], "hook")
        calls = [n.lineno for n in ast.walk(tree) if isinstance(n, ast.Call)]
        assert calls == [4, 6]


class Extension:
    """Wires the two halves into a shell as nbcache's own extension does, with a compiler that records."""

    def __init__(self, shell: InteractiveShell):
        self.shell = shell
        self.cells: list[CompileOptions] = []
        self.compiled: list[str] = []
        self.transformer = CellTransformer()
        self.compiler = TargetCompiler(lambda: shell.user_ns, self.compile_target, self.on_cell)

    def load(self) -> None:
        self.shell.input_transformers_cleanup.append(self.transformer)
        self.shell.ast_transformers.append(self.compiler)

    def unload(self) -> None:
        self.shell.input_transformers_cleanup.remove(self.transformer)
        self.shell.ast_transformers.remove(self.compiler)
        self.shell.user_ns.pop(HOOK, None)

    def on_cell(self, options: CompileOptions) -> None:
        self.cells.append(options)

    def compile_target(self, target: str, function: Any) -> Any:
        check_callable(target, function)
        self.compiled.append(target)

        def compiled(*args: object) -> tuple[str, object]:
            return ("compiled", function(*args))

        return compiled


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setattr(sys, "displayhook", sys.displayhook)
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    shell = InteractiveShell(config=config)
    yield shell
    shell.restore_sys_module_state()


@pytest.fixture
def extension(shell: InteractiveShell) -> Extension:
    extension = Extension(shell)
    extension.load()
    return extension


@pytest.fixture
def run(
    shell: InteractiveShell, extension: Extension, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], tuple[ExecutionResult, str]]:
    """Return a function that runs a cell, and returns its result and everything it wrote."""

    def run(source: str) -> tuple[ExecutionResult, str]:
        result = shell.run_cell(textwrap.dedent(source))
        captured = capsys.readouterr()
        return result, captured.out + captured.err

    return run


Run = Callable[[str], tuple[ExecutionResult, str]]


class TestCells:
    def test_a_target_is_compiled_before_the_cells_own_calls(self, run: Run, extension: Extension) -> None:
        result, output = run("""\
            %%compile_cached f --fullgraph
            def f(x):
                return x + 1
            f(1)""")
        assert result.result == ("compiled", 2)
        assert "('compiled', 2)" in output
        assert [options.fullgraph for options in extension.cells] == [True]
        assert extension.compiled == ["f"]

    def test_a_target_from_an_earlier_cell_is_compiled_first(self, run: Run, extension: Extension) -> None:
        run("f = len")
        assert run("%%compile_cached f\nf('ab')")[0].result == ("compiled", 2)
        assert extension.compiled == ["f"]

    def test_top_level_await_works(self, run: Run) -> None:
        result, _ = run("""\
            %%compile_cached f
            import asyncio
            async def g():
                await asyncio.sleep(0)
                return len
            f = await g()
            f('ab')""")
        assert result.result == ("compiled", 2)

    def test_an_error_shows_once_with_its_line(self, run: Run, shell: InteractiveShell) -> None:
        result, output = run("%%compile_cached\nx = 1\n1 / 0\nx = 2")
        assert isinstance(result.error_in_exec, ZeroDivisionError)
        assert output.count("ZeroDivisionError: division by zero") == 1
        assert "----> 3 1 / 0" in output
        assert shell.user_ns["x"] == 1

    def test_a_syntax_error_has_its_line(self, run: Run) -> None:
        result, output = run("%%compile_cached\nx = 1\nx = = 1")
        assert isinstance(result.error_before_exec, SyntaxError)
        assert result.error_before_exec.lineno == 3
        assert output.count("SyntaxError") == 1

    @pytest.mark.parametrize(
        ("source", "problem"),
        [
            ("%%compile_cached", "the cell is empty"),
            ("%%compile_cached --fulgraph\nran = True", "did you mean `--fullgraph`"),
            ("%%compile_cached nthing\nran = True", "`nthing` does not exist, and the cell does not bind it"),
            ("%%compile_cached numbr\nran = True", "at top level; did you mean `number`?"),
            ("%%compile_cached box.f\nran = True", "`box.f` does not exist"),
            ("%%compile_cached f number\nf = len\nran = True", "`number` cannot be called (int)"),
            ("%%compile_cached Class\nran = True", "`Class` is a class"),
        ],
    )
    def test_what_can_be_known_ahead_stops_the_cell_with_one_line(
        self, run: Run, shell: InteractiveShell, extension: Extension, source: str, problem: str
    ) -> None:
        shell.user_ns.update(number=3, Class=Path, box=object())
        result, output = run(source)
        assert isinstance(result.error_before_exec, UsageError)
        assert problem in output
        assert output.startswith("UsageError: %%compile_cached: ")
        assert output.count("\n") == 1
        assert "ran" not in shell.user_ns
        assert extension.compiled == []

    @pytest.mark.parametrize(
        ("source", "problem"),
        [
            ("%%compile_cached f\nran = True\nf = 3\nlater = True", "`f` cannot be called (int)"),
            ("%%compile_cached f\nran = True\nclass f: pass\nlater = True", "`f` is a class"),
        ],
    )
    def test_what_cannot_be_known_ahead_stops_the_cell_where_it_is_found(
        self, run: Run, shell: InteractiveShell, source: str, problem: str
    ) -> None:
        result, output = run(source)
        assert isinstance(result.error_in_exec, UsageError)
        assert problem in output
        assert output.count("\n") == 1
        assert "ran" in shell.user_ns
        assert "later" not in shell.user_ns

    def test_errors_do_not_unregister_anything(self, run: Run, extension: Extension) -> None:
        run("%%compile_cached nothing\n1")
        run("%%compile_cached --nothing\n1")
        run("%%compile_cached\n1")
        assert extension.cells == [CompileOptions()]

    def test_a_name_that_holds_no_function_may_be_bound_by_the_cell(self, run: Run) -> None:
        run("f = None")
        result, _ = run("%%compile_cached f\nif f is None:\n    f = len\nf('ab')")
        assert result.result == ("compiled", 2)

    @pytest.mark.parametrize("line", ["from operator import *", "%time index = len", "exec('index = len')"])
    def test_names_bound_out_of_sight_are_compiled(self, run: Run, extension: Extension, line: str) -> None:
        result, _ = run(f"%%compile_cached index\n{line}\nindex")
        assert result.result.__name__ == "compiled"
        assert extension.compiled == ["index"]

    def test_a_dotted_target_is_compiled(self, run: Run) -> None:
        result, _ = run("""\
            %%compile_cached box.f
            from types import SimpleNamespace
            box = SimpleNamespace(f=len)
            box.f('ab')""")
        assert result.result == ("compiled", 2)

    def test_time_above_the_line_works(self, run: Run, extension: Extension) -> None:
        result, output = run("%%time\n%%compile_cached f --quiet\nf = len\nf('ab')")
        assert result.result == ("compiled", 2)
        assert "Wall time" in output
        assert [options.quiet for options in extension.cells] == [True]
        _, output = run("%%time\n%%compile_cached nothing\n1")
        assert output.startswith("UsageError: %%compile_cached: `nothing` does not exist")

    def test_a_nested_cell_does_not_get_the_options(self, run: Run, extension: Extension) -> None:
        run("%%compile_cached f\nf = len\nnested = get_ipython().run_cell('f = abs; f(-1)').result\n")
        assert extension.shell.user_ns["nested"] == 1
        assert extension.compiled == ["f", "f"]  # after `f = len`, and after the nested cell
        assert len(extension.cells) == 1

    @pytest.mark.parametrize("interactivity", ["all", "last_expr", "last"])
    def test_only_what_the_cell_shows_is_shown(
        self, run: Run, shell: InteractiveShell, interactivity: str
    ) -> None:
        shell.ast_node_interactivity = interactivity
        _, output = run("%%compile_cached f\nf = len\n1 + 1")
        assert [line.partition(":")[2] for line in output.splitlines()] == [" 2"]

    def test_blank_first_lines_and_indentation_are_as_ipython_has_them(
        self, run: Run, extension: Extension
    ) -> None:
        result = extension.shell.run_cell("\n\n    %%compile_cached f\n    f = len\n    f('ab')")
        assert result.result == ("compiled", 2)

    def test_the_hook_survives_reset(self, run: Run) -> None:
        run("%%compile_cached f\nf = len")
        run("%reset -f")
        assert run("%%compile_cached f\nf = len\nf('ab')")[0].result == ("compiled", 2)

    def test_a_prompt_takes_the_cell_for_any_cell_magic(
        self, shell: InteractiveShell, extension: Extension
    ) -> None:
        assert shell.check_complete("%%compile_cached --wrong") == ("incomplete", "")
        assert shell.check_complete("%%compile_cached f\nf(x)") == ("incomplete", "")
        assert shell.check_complete("%%compile_cached f\nf(x)\n\n")[0] == "complete"


KERNEL_SETUP = """
from nbcache.ui.ipython.compile_cell import CellTransformer, TargetCompiler
shell = get_ipython()
seen = []
def compile_target(target, value):
    seen.append(target)
    return lambda *args: ("compiled", value(*args))
shell.input_transformers_cleanup.append(CellTransformer())
shell.ast_transformers.append(TargetCompiler(lambda: shell.user_ns, compile_target, lambda options: None))
"""


class TestKernel:
    def test_a_notebook_runs_as_without_the_magic(self) -> None:
        cells = [
            KERNEL_SETUP,
            "%%compile_cached f\nimport asyncio\nawait asyncio.sleep(0)\nf = len\nf('ab')",
            "%%compile_cached\nawait asyncio.sleep(0)\n1 / 0",
            "%%compile_cached --fulgraph\n1",
            "%%compile_cached",
            "%%compile_cached nothing\nawait asyncio.sleep(0)",
            "seen",
        ]
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        client = nbclient.NotebookClient(
            notebook, kernel_name="python3", resources={"metadata": {"path": str(REPOSITORY)}}, timeout=60
        )
        errors = []
        with client.setup_kernel():
            for index, cell in enumerate(notebook.cells):
                try:
                    client.execute_cell(cell, index)
                except nbclient.exceptions.CellExecutionError as error:
                    errors.append((index, error.ename))
        assert errors == [(2, "ZeroDivisionError"), (3, "UsageError"), (4, "UsageError"), (5, "UsageError")]
        outputs = [cell.outputs for cell in notebook.cells]
        assert outputs[1][0].data["text/plain"] == "('compiled', 2)"
        assert outputs[6][0].data["text/plain"] == "['f']"
        for failed in outputs[2:6]:
            assert [output.output_type for output in failed] == ["error"]
        assert "3" in "".join(outputs[2][0].traceback)
        for failed in outputs[3:6]:
            assert len(failed[0].traceback) == 1
            assert failed[0].traceback[0] == f"UsageError: {failed[0].evalue}"
            assert failed[0].traceback[0].startswith("UsageError: %%compile_cached: ")
