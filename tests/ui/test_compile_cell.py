"""`%%compile_cached`, the line: options, completion, source and syntax tree, and cells through IPython."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.error import UsageError
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from traitlets.config import Config

from nbcache.ui.ipython import compile_cell
from nbcache.ui.ipython.compile_cell import CellTransformer, CompileOptions, check, complete, find, parse
from nbcache.ui.ipython.compile_targets import (
    HOOK,
    TargetCompiler,
    insert_compile_calls,
    is_compilable,
    never_bound,
    not_callable,
)

REPOSITORY = Path(__file__).parents[2]


class TestOptions:
    def test_a_bare_line_asks_for_nothing(self) -> None:
        assert parse("") == CompileOptions()
        assert parse("").torch_arguments() == {}

    def test_every_option_is_read(self) -> None:
        options = parse(
            "f self.model --backend inductor --options max_autotune=True triton.cudagraphs=false g"
            " --fullgraph --no-dynamic --device cuda:1 --name 'my cell' --require-hit --no-save --quiet"
        )
        assert options == CompileOptions(
            targets=("f", "self.model", "g"),
            fullgraph=True,
            dynamic=False,
            backend="inductor",
            options={"max_autotune": True, "triton.cudagraphs": False},
            device="cuda:1",
            name="my cell",
            require_hit=True,
            save=False,
            quiet=True,
        )

    def test_torch_gets_only_what_was_given(self) -> None:
        assert parse("--mode=max-autotune --dynamic --name n --device cpu").torch_arguments() == {
            "mode": "max-autotune",
            "dynamic": True,
        }
        options = parse("--options a=1 --fullgraph --backend eager")
        assert options.torch_arguments() == {"options": {"a": 1}, "fullgraph": True, "backend": "eager"}

    def test_torch_may_change_the_options_it_gets(self) -> None:
        options = parse("--options a=1")
        options.torch_arguments()["options"].clear()
        assert options.torch_arguments() == {"options": {"a": 1}}

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("k=1", 1),
            ("k=-1", -1),
            ("k=0.5", 0.5),
            ("k=1e3", 1000.0),
            ("k=True", True),
            ("k=false", False),
            ("k=None", None),
            ("k=ATEN,TRITON", "ATEN,TRITON"),
            ("k=a=b", "a=b"),
            ("k=", ""),
            ("k=''", ""),
            ('k="1"', "1"),
            ("""k='"1"'""", "1"),
            ('k="true"', "true"),
            ('k="two words"', "two words"),
            ("'k=two  words'", "two  words"),
            ("k=[1,2]", "[1,2]"),
            ("k=1if", "1if"),
        ],
    )
    def test_a_value_has_the_type_it_looks_like(self, text: str, value: object) -> None:
        (read,) = parse(f"--options {text}").options.values()
        assert read == value
        assert type(read) is type(value)

    def test_options_can_be_repeated_and_followed_by_targets(self) -> None:
        options = parse("--options a=1 --options=b=2 d --options e=4 f")
        assert dict(options.options) == {"a": 1, "b": 2, "e": 4}
        assert options.targets == ("d", "f")

    def test_a_target_named_twice_counts_once(self) -> None:
        assert parse("f g f").targets == ("f", "g")

    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            ("--mod x", "unknown option `--mod`; did you mean `--mode`"),
            ("-m x", "unknown option `-m`"),
            ("--help", "unknown option `--help`"),
            ("--mode", "`--mode` needs a value"),
            ("--mode --quiet", "`--mode` needs a value"),
            ("--mode=", "`--mode` needs a value"),
            ("--mode a --mode b", "`--mode` is given twice"),
            ("--quiet=1", "`--quiet` takes no value"),
            ("--dynamic --no-dynamic", "`--dynamic` and `--no-dynamic` exclude each other"),
            ("--options a=1 --mode default", "`--mode` and `--options` exclude each other"),
            ("--options", "`--options` needs K=V"),
            ("--options f", "`--options` needs K=V"),
            ("--options =1", "`--options` needs K=V, not `=1`"),
            ("--options=a", "`--options` needs K=V, not `a`"),
            ("--options a=1 a=2", "option `a` is given twice"),
            ("a=1", "`a=1` is neither a target nor after `--options`"),
            ("f()", "`f()` is not the name of a function or module"),
            ("f.", "`f.` is not the name"),
            ("class", "`class` is not the name"),
            ("--name 'open", "a quote or backslash is left open in `'open`"),
            ("f \\", "a quote or backslash is left open in `\\`"),
        ],
    )
    def test_a_wrong_line_says_what_is_wrong_and_how_it_is_used(self, line: str, problem: str) -> None:
        with pytest.raises(UsageError) as caught:
            parse(line)
        message = str(caught.value)
        assert problem in message
        assert message.endswith(f"Usage: {compile_cell.usage()}")
        assert "\n" not in message

    def test_names_that_torch_does_not_know_are_named_with_the_nearest(self) -> None:
        with pytest.raises(UsageError, match=r"unknown option `max_autotun` .*did you mean `max_autotune`"):
            check(parse("--options max_autotun=1"), known_options=["max_autotune", "triton.cudagraphs"])
        with pytest.raises(UsageError, match=r"unknown mode `fast` \(torch has default, max-autotune\)"):
            check(parse("--mode fast"), known_modes=["default", "max-autotune"])
        with pytest.raises(UsageError, match="unknown backend `inducto`; did you mean `inductor`"):
            check(parse("--backend inducto"), known_backends=["eager", "inductor"])

    def test_names_that_torch_knows_or_that_are_another_backends_pass(self) -> None:
        check(parse("--options max-autotune=1 use_aoti=True"), known_options=["max_autotune"], known_modes=[])
        check(parse("--options x=1 --backend eager"), known_options=[], known_backends=["eager"])
        check(parse("--mode x --backend y"), known_options=[])
        check(parse("--mode x"))

    def test_the_help_has_every_option_of_the_usage_line(self) -> None:
        text = compile_cell.help_text()
        assert compile_cell.usage() in text
        for flag in ("TARGET …", "--mode M", "--no-dynamic", "--options K=V …", "--require-hit"):
            assert f"\n  {flag}  " in text

    def test_the_usage_line_is_the_documented_one(self) -> None:
        assert compile_cell.usage() == (
            "%%compile_cached [TARGET …] [--mode M] [--fullgraph] [--dynamic / --no-dynamic] [--backend B]"
            " [--options K=V …] [--device D] [--name N] [--require-hit] [--no-save] [--quiet]"
        )


class TestCompletion:
    def offers(self, line: str) -> list[str]:
        symbol = line.replace("=", " ").rpartition(" ")[2]
        return complete(
            line,
            symbol,
            names=["model", "function"],
            modes=lambda: ["default", "max-autotune"],
            options=["max_autotune", "cpp.threads"],
            backends=["eager", "inductor"],
        )

    @pytest.mark.parametrize(
        ("line", "offers"),
        [
            ("%%compile_cached mo", ["model"]),
            ("%%compile_cached --n", ["--no-dynamic", "--name", "--no-save"]),
            ("%%compile_cached --quiet --q", []),
            ("%%compile_cached --mode ma", ["max-autotune"]),
            ("%%compile_cached --mode=ma", ["max-autotune"]),
            ("%%compile_cached --mode=max-autotune --mod", []),
            ("%%compile_cached --backend ", ["eager", "inductor"]),
            ("%%compile_cached --device cu", ["cuda"]),
            ("%%compile_cached --name ", []),
            ("%%compile_cached --options ma", ["max_autotune="]),
            ("%%compile_cached --options max_autotune=T", ["True"]),
            ("%%compile_cached --options max_autotune=True cp", ["cpp.threads="]),
            ("%%compile_cached --options max_autotune=True --opt", ["--options"]),
            ("%%compile_cached", []),
        ],
    )
    def test_what_can_stand_at_the_cursor_is_offered(self, line: str, offers: list[str]) -> None:
        assert self.offers(line) == offers

    def test_torch_is_asked_for_its_names_only_when_they_are_needed(self) -> None:
        def fail() -> list[str]:
            raise AssertionError

        line = "%%compile_cached --fu"
        assert complete(line, "--fu", modes=fail, options=fail, backends=fail) == ["--fullgraph"]


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

    def test_the_line_is_found_in_the_raw_and_in_the_transformed_source(self) -> None:
        raw = '\n%%compile_cached f --name "it\'s"\nf(x)\n'
        assert find(raw) == find("".join(self.transform(*raw.splitlines()[1:]))) == 'f --name "it\'s"'
        assert find("%%compile_cached\n1") == ""

    @pytest.mark.parametrize(
        "source", ["", "f(x)", "%%compile_cached?", "'nbcache: f'", "'nbcache: %%compile_cached"]
    )
    def test_nothing_is_found_in_other_sources(self, source: str) -> None:
        assert find(source) is None


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
            "try:\n    f = g\n    @\nexcept* E:\n    f = h\n    @",
            "match c:\n    case 1:\n        f = g\n        @",
            "for f in g:\n    @\n    f(x)",
            "for i, f in g:\n    @\n    f(x)",
            "with g as f:\n    @\n    f(x)",
            "async with g as (f, h):\n    @\n    f(x)",
            "async for f in g:\n    @\n    f(x)",
            "match g:\n    case f:\n        @\n        f(x)",
            "match g:\n    case {'a': [h, *f], **r}:\n        @\n        f(x)",
            "match g:\n    case {'a': 1, **f}:\n        @\n        f(x)",
        ],
    )
    def test_a_call_joins_the_block_that_binds(self, source: str) -> None:
        assert inserted(re.sub(r" *@\n|\n *@", "", source), "f") == source.replace("@", CALL)

    @pytest.mark.parametrize(
        ("source", "expected"),
        [
            ("print((f := g))", "print((f := hook('f', g)))"),
            ("if (f := g):\n    f(x)", "if (f := hook('f', g)):\n    f(x)"),
            ("h = [(f := g) for g in k]", "h = [(f := hook('f', g)) for g in k]"),
            ("def g(x=(f := h)):\n    (f := x)", "def g(x=(f := hook('f', h))):\n    (f := x)"),
            ("(f := (f := g))", "(f := hook('f', (f := hook('f', g))))"),
            (
                "match g:\n    case 1 if (f := g):\n        pass",
                "match g:\n    case 1 if (f := hook('f', g)):\n        pass",
            ),
            ("lambda y=(f := g): y", "lambda y=(f := hook('f', g)): y"),
        ],
    )
    def test_a_walrus_binds_the_compiled_value(self, source: str, expected: str) -> None:
        assert inserted(source, "f") == expected

    def test_every_binding_of_every_target_is_compiled(self) -> None:
        assert inserted("f = a\ng = b\nf = g", "f", "g") == (
            f"f = a\n{CALL}\ng = b\ng = hook('g', g)\nf = g\n{CALL}"
        )

    @pytest.mark.parametrize("source", ["f(x)", "g()", "if c:\n    f = g", "g = f\nf = h", "print((f := g))"])
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
        assert inserted("(a := g())\na.b(x)", "a.b") == f"(a := g())\n{call}\na.b(x)"
        assert inserted("a.b(x)", "a.b", existing=("a.b",)) == f"{call}\na.b(x)"
        assert inserted("a.c = 1", "a.b") == "a.c = 1"

    @pytest.mark.parametrize(
        "line", ["from g import *", "get_ipython().run_line_magic('run', 'g.py')", "exec('f = 1')"]
    )
    def test_what_may_have_bound_it_is_followed_by_a_look(self, line: str) -> None:
        look = f"if 'f' in locals():\n    {CALL}"
        missing = "if 'f' not in locals():\n    hook('f')"
        assert inserted(f"{line}\nf(x)", "f") == f"{line}\n{look}\n{missing}\nf(x)"
        assert inserted(f"{line}\nf(x)", "f", existing=("f",)) == f"{CALL}\n{line}\n{look}\nf(x)"

    def test_a_call_has_the_line_of_the_statement_that_it_follows(self) -> None:
        tree = ast.parse("\n\n@d\ndef f():\n    pass\nfor f in (\n    1,\n): f")
        insert_compile_calls(tree, ["f"], [], "hook")
        calls = [n.lineno for n in ast.walk(tree) if isinstance(n, ast.Call)]
        assert calls == [4, 6]


class TestMessages:
    def test_what_is_never_bound_is_named_with_the_nearest(self) -> None:
        message = str(never_bound("modle", ["model", "_model", "x"]))
        assert message == (
            "%%compile_cached: `modle` does not exist, and the cell does not bind it at top level;"
            " did you mean `model`?"
        )

    def test_what_cannot_be_compiled_is_named_with_its_type(self) -> None:
        assert "`n` cannot be called (int)" in str(not_callable("n", 1))
        assert "`C` is a class" in str(not_callable("C", int))

    def test_functions_and_callable_objects_can_be_compiled(self) -> None:
        assert is_compilable(len)
        assert is_compilable(functools.partial(len))
        assert not is_compilable(int)
        assert not is_compilable(None)


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
        check(options, known_modes=["default"])
        self.cells.append(options)

    def compile_target(self, target: str, *value: Any) -> Any:
        if not value:
            raise never_bound(target)
        if not is_compilable(value[0]):
            raise not_callable(target, value[0])
        self.compiled.append(target)
        function = value[0]

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

    def test_an_error_in_a_compiled_function_has_its_line(self, run: Run) -> None:
        _, output = run("%%compile_cached f\ndef f():\n\n    1 / 0\nf()")
        assert "----> 5 f()" in output
        assert "----> 4     1 / 0" in output

    @pytest.mark.parametrize(
        ("source", "problem"),
        [
            ("%%compile_cached", "the cell is empty"),
            ("%%compile_cached\n\n", "the cell is empty"),
            ("%%compile_cached --fulgraph\nran = True", "did you mean `--fullgraph`"),
            ("%%compile_cached nothing\nran = True", "`nothing` does not exist"),
            ("%%compile_cached f number\nf = len\nran = True", "`number` cannot be called (int)"),
            ("%%compile_cached Class\nran = True", "`Class` is a class"),
            ("%%compile_cached --mode slow\nran = True", "unknown mode `slow`"),
        ],
    )
    def test_what_can_be_known_ahead_stops_the_cell_with_one_line(
        self, run: Run, shell: InteractiveShell, extension: Extension, source: str, problem: str
    ) -> None:
        shell.user_ns.update(number=3, Class=Path)
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
            ("%%compile_cached f\nran = True\nfrom math import *\nlater = True", "`f` does not exist"),
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

    def test_a_property_that_raises_is_the_users_own_error(self, run: Run) -> None:
        run("class Box:\n    @property\n    def f(self): raise KeyError('mine')\nbox = Box()")
        result, output = run("%%compile_cached box.f\n1")
        assert isinstance(result.error_in_exec, KeyError)
        assert output.count("KeyError: 'mine'") == 1

    def test_time_above_the_line_works(self, run: Run, extension: Extension) -> None:
        result, output = run("%%time\n%%compile_cached f --quiet\nf = len\nf('ab')")
        assert result.result == ("compiled", 2)
        assert "Wall time" in output
        assert [options.quiet for options in extension.cells] == [True]
        _, output = run("%%time\n%%compile_cached nothing\n1")
        assert output == "UsageError: " + str(never_bound("nothing")) + "\n"

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

    def test_other_cells_are_unaffected(self, run: Run, extension: Extension) -> None:
        assert run("f = len\nf('ab')")[0].result == 2
        assert run("%%time\nf('ab')")[0].result == 2
        assert run("'%%compile_cached f'")[0].result == "%%compile_cached f"
        assert run("")[0].success
        assert extension.cells == []
        assert extension.compiled == []

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

    def test_help_is_ipythons(self, run: Run, shell: InteractiveShell) -> None:
        def compile_cached(line: str, cell: str) -> None: ...

        compile_cached.__doc__ = compile_cell.help_text()
        shell.register_magic_function(compile_cached, "cell")
        result, output = run("%%compile_cached?")
        assert result.success
        assert "--require-hit" in output

    def test_ipython_completes_the_line(self, shell: InteractiveShell, extension: Extension) -> None:
        def completer(shell: InteractiveShell, event: Any) -> list[str]:
            return complete(event.text_until_cursor, event.symbol, names=["model"], modes=["max-autotune"])

        shell.set_hook("complete_command", completer, str_key="%%compile_cached")
        for line, offer in (
            ("%%compile_cached --fu", "--fullgraph"),
            ("%%compile_cached --mode max-a", "max-autotune"),
            ("%%compile_cached --mode=max-a", "max-autotune"),
            ("%%compile_cached mo", "model"),
        ):
            with provisionalcompleter():
                assert offer in [found.text for found in shell.Completer.completions(line, len(line))], line

    def test_unloading_leaves_the_shell_as_found(self, shell: InteractiveShell) -> None:
        before = [*shell.input_transformers_cleanup], [*shell.ast_transformers], {*shell.user_ns}
        extension = Extension(shell)
        extension.load()
        shell.run_cell("%%compile_cached f\nf = len")
        extension.unload()
        shell.user_ns.pop("f")
        added = {*shell.user_ns} - before[2]
        assert [*shell.input_transformers_cleanup] == before[0]
        assert [*shell.ast_transformers] == before[1]
        assert HOOK not in added
        assert not any("nbcache" in name for name in added)


KERNEL_SETUP = """
from nbcache.ui.ipython.compile_cell import CellTransformer
from nbcache.ui.ipython.compile_targets import TargetCompiler
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
        nbformat = pytest.importorskip("nbformat")
        nbclient = pytest.importorskip("nbclient")
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


def test_importing_brings_in_neither_torch_nor_ipython() -> None:
    code = (
        "import sys, nbcache.ui.ipython.compile_targets\n"
        "sys.exit(' '.join({'torch', 'IPython', 'traitlets'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
