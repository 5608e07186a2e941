"""Templates of torch's Triton kernels are compiled when one is rendered, to the same, and users' at once."""

from __future__ import annotations

import pytest

from support.front_door import LOAD, RunCells, printed

pytestmark = pytest.mark.compile

COUNT = """\
import jinja2
compiled = []
from_string = jinja2.Environment.from_string
def counted(self, source, *args, **kwargs):
    compiled.append(source)
    return from_string(self, source, *args, **kwargs)
jinja2.Environment.from_string = counted
"""
IMPORT = """\
import torch, torch._inductor.lowering
from torch._inductor.select_algorithm import TritonTemplate
at_import = list(compiled)
print(len(TritonTemplate.all_templates), len(at_import))
"""
USE = """\
import jinja2.meta
import torch._inductor.codegen.common as common, torch._inductor.kernel.mm as kernels
source = kernels.load_kernel_template("triton_mm")
names = jinja2.meta.find_undeclared_variables(jinja2.Environment().parse(source))
context = {name: lambda *of, name=name, **more: name for name in names}
said = kernels.mm_template.template.render(**context)
same = said == common.KernelTemplate._template_from_string(source).render(**context)
print([same, "def_kernel" in said])
"""
OWN = """\
before = len(compiled)
own = TritonTemplate("own", lambda *sizes: (1, 1, 1), "{{ 1 + 1 }}")
print([len(compiled) - before, own.template.render()])
try:
    TritonTemplate("broken", lambda *sizes: (1, 1, 1), "{{ 1 +")
except jinja2.TemplateSyntaxError as error:
    print("refused where it is made")
"""


def test_importing_the_compiler_compiles_no_template(run_cells: RunCells) -> None:
    done = run_cells([LOAD, COUNT, IMPORT, USE, OWN], forked=False)
    templates, at_import = map(int, printed(done, 2).split())
    assert templates > 10 and at_import == 0
    assert printed(done, 3) == "[True, True]\n"
    assert printed(done, 4).splitlines() == ["[1, '2']", "refused where it is made"]
