"""What to do about a recompile or a graph break, by what torch 2.13 writes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest

from nbcache.core.model import Direction, Outcome
from nbcache.core.reports import Difference, Explanation, GraphRecord
from nbcache.kernel.explain.guards import in_words, readable, recompile_action
from nbcache.kernel.explain.why import break_action, next_action

KEY_SET = (
    "0/0: tensor 'x' dispatch key set mismatch. expected DispatchKeySet(CPU, BackendSelect, ADInplaceOrView, "
    "AutogradCPU), actual "
)
DEPENDENT = "has a non-Tensor output whose value is dependent on the data of Tensor inputs."
SKIPPED = "Attempted to call function marked as skipped: Dynamo does not know how to trace the"
PARAMETER = "torch.nn.parameter.Parameter"
ON_PARAMETER = (
    "Guard failed on a parameter, consider using torch._dynamo.config.force_parameter_static_shapes = False "
    "to allow dynamism on parameters."
)
SPECIAL = (
    "# return x + 1 # In[3]:2 in f (user code shown is first use of this value--the guard itself is not due "
    "user code but due to 0/1 specialization in the framework; to avoid specialization try "
    "torch._dynamo.decorators.mark_unbacked(tensor, dim))"
)


@pytest.mark.parametrize(
    ("guard", "action"),
    [
        ("0/0: s._modules['d'].training == True # return F.dropout(x) # d.py:73", "train mode and eval mode"),
        ("0/0: mode == 'mean' # return x.mean() if mode == 'mean' else x # In[3]:1", "nothing: each value"),
        ("0/0: G['m'].name == 'n1'", "nothing: each value"),
        ("0/0: flag == True", "nothing: each value"),
        ("0/0: dt == torch.float32", "nothing: each value"),
        ("0/0: d == device(type='cpu')", "nothing: each value"),
        ("0/0: len(L) == 3 # def f(x, L): return x * len(L) # In[3]:1 in f", "keep the length"),
        ("0/1: len(d) != 2", "keep the length"),
        ("3/0: not out # out.append(1) # In[11]:2 in g", "keep the length"),
        ("2/0: len(self.state[list(dict.keys(self.state))[0]]) != 0", "creates its state in step one"),
        ("0/0: not ___dict_contains('s', d)", "the same keys"),
        ("0/0: set.__contains__(s, 'a')", "the same keys"),
        ("0/0: not hasattr(c, 'z')", "before the first call"),
        ("0/1: s.step == 1 # s.step += 1 # In[3]:2 in forward (HINT: ...)", "make the attribute a tensor"),
        ("0/0: G['steps'] == 3", "make it a tensor, if the code only computes with it"),
        ("0/0: k == 2", "torch treats it as a variable from now on"),
        ("0/0: G['lr'] == 0.5", "torch treats it as a variable from now on"),
        ("0/1: k == 3 # for _ in range(k): # In[3]:2 in f", "else each value has its own version"),
        ("2/0: self.param_groups[0]['lr'] == 0.1 # for group in self.param_groups:", "lr=torch.tensor"),
        ("2/1: self.param_groups[0]['momentum'] == 0.9", "nothing: each value"),
        ("0/0: GLOBAL_STATE changed: default_dtype", "in the same mode each time: default dtype"),
        ("0/1: GLOBAL_STATE changed: autocast(cpu)_enabled grad_mode", "autocast(cpu) enabled, grad mode"),
        ("0/0: tensor 'x' dtype mismatch. expected Float, actual Double", "cast it before the call"),
        ("0/0: tensor 'x' rank mismatch. expected 2, actual 3", "the same number of dimensions"),
        ("0/0: tensor 'x' stride mismatch at index 0. expected 8, actual 16", "such as x.contiguous()"),
        ("0/0: tensor 'x' size mismatch at index 1. expected 4, actual 6", "mark_dynamic(x, 1)"),
        ("0/0: tensor 'b['x']' size mismatch at index 0. expected 4, actual 6", "dynamic=True"),
        ("0/1: tensor 'y' size mismatch at index 0. expected 6, actual 1", "mark_unbacked(y, 0)"),
        (f"0/1: 2 <= x.size()[0] {SPECIAL}", "mark_unbacked(x, 0)"),
        ("0/1: (x.size()[0] % 2) == 0 # if x.shape[0] % 2 == 0: # In[3]:2 in f", "nothing: the code asks"),
        ("0/1: 6 <= x.size()[0] # if x.shape[0] > 5: # In[3]:2 in f", "nothing: the code asks"),
        (f"0/0: tensor 'm._parameters['b']' size mismatch at index 0. {ON_PARAMETER}", "nothing: each size"),
        (f"0/0: tensor 's._parameters['w']' requires_grad mismatch. {ON_PARAMETER}", "if you froze it"),
        ("0/0: tensor 'x' requires_grad mismatch. expected requires_grad=0", "x.detach()"),
        (f"0/0: expected type of 'x' to be a tensor type, ' but found <class '{PARAMETER}'>", "x.detach()"),
        (
            "0/0: expected type of 'm' to be a tensor type, ' but found <class 'NoneType'>",
            "with and without the argument",
        ),
        ("0/0: expected type of 'x' to be a tensor type, ' but found <class '__main__.T'>", "the same class"),
        (
            "0/0: mask is None # return x if mask is None else x * mask # In[3]:1",
            "with and without the argument",
        ),
        ('0/0: Duplicate tensors found: ["x", "y"]', "x.clone()"),
        ("0/0: x is y # return x * y # In[3]:1 in f", "x.clone()"),
        (KEY_SET + "DispatchKeySet(CPU, BackendSelect)", "torch.inference_mode()"),
        (KEY_SET + "DispatchKeySet(SparseCPU, BackendSelect, ADInplaceOrView)", "dense or sparse"),
        (KEY_SET + "DispatchKeySet(CUDA, BackendSelect, ADInplaceOrView, AutogradCUDA)", "on one device"),
        ("0/0: ___check_obj_id(act.__code__, 140259201495072), type=<class 'code'>", "the same function"),
        ("0/0: ___check_obj_id(m, 140258567913232), type=<class '__main__.Mode'>", "each object has"),
        ("0/0: ___check_type_id(k, 140259208033088), type=<class 'list'>", "type each time, such as list"),
        ("0/1: ___check_type_id(G['LR'], 140259208033088), type=<class 'float'>", "if it is a tensor now"),
        ("0/0: BACKEND_MATCH failure: torch.compile detected different backend callables.", "one backend"),
        ("0/0: Cache line invalidated: L['m'] got deallocated", "create model and optimizer once"),
        ("0/0: something new", "keep the value that the guard checks"),
        ("", "keep the value that the guard checks"),
    ],
)
def test_each_guard_has_the_action_that_helps(guard: str, action: str) -> None:
    assert action in recompile_action(guard)


@pytest.mark.parametrize(
    ("reason", "action"),
    [
        (f"Operator `aten._local_scalar_dense.default` {DEPENDENT} (In[3]:2)", "by torch.rand"),
        (f"Data dependent operator: Operator `aten.equal.default` {DEPENDENT}", "compare tensors"),
        ("Dynamic shape operator: Operator `aten.nonzero`", "capture_dynamic_output_shape_ops = True"),
        ("an `if`, `while` or `assert` asks for the value of a tensor (In[2]:4)", "torch.cond"),
        ("Unsupported Tensor.item() call with capture_scalar_outputs=False", "capture_scalar_outputs"),
        ("torch cannot trace the built-in `print` (In[3]:5)", "print after"),
        (f"{SKIPPED} Python builtin `_warnings.warn`.", "warn outside"),
        (f"{SKIPPED} builtin `<unknown module>.Random.random.` This function is either", "torch.rand"),
        ("Attempted to copy.deepcopy a tensor: Dynamo does not support copy.deepcopy()", "clone()"),
        ("Attempted to use `torch.nn.Parameter()` constructor with Dynamo", "outside the compiled function"),
        ("Call to `torch._dynamo.graph_break()`: User-inserted graph break. Message: None", "take the call"),
        ("torch cannot trace the built-in `open`", "custom operator"),
        ("something new (In[3]:5)", "move it out of the compiled function"),
    ],
)
def test_each_graph_break_has_the_fix_that_helps(reason: str, action: str) -> None:
    assert action in break_action(reason)


def test_a_graph_that_differs_and_was_compiled_again_has_the_better_advice_of_both() -> None:
    def action(guard: str, *differences: Difference, reason: str | None = None) -> str:
        graph = GraphRecord("f", "0/1", Direction.INFERENCE, Outcome.MISS, recompile_reason=guard)
        return next_action(
            replace(graph, explanation=Explanation("k", differences), graph_break_reason=reason)
        )

    grows = Difference("constant out[0]", "not a constant", "1")
    assert action("0/1: len(out) == 1", grows).startswith("keep the length")
    state = "5/0: len(self.state[list(dict.keys(self.state))[0]]) != 0"
    assert "creates its state in step one" in action(state, Difference("inputs", "2", "3"))
    value = Difference("constant k", "2.0", "not a constant")
    assert "other values do not compile again" in action("0/0: k == 2.0", value)

    rate = Difference("constant self.param_groups[0]['lr']", "0.1", "not a constant")
    guard, put = (
        "0/2: self.param_groups[0]['lr'] == 0.1",
        Difference("constant in the graph", "-0.1", "-0.05"),
    )
    own = "Call to `torch._dynamo.graph_break()`: User-inserted (/site-packages/torch/optim/optimizer.py:79)"
    assert "lr=torch.tensor" in action(guard, rate, put, reason=own)
    assert "other values do not compile again" in action(guard, rate, reason=own)


def test_where_the_line_is_known_nothing_else_has_to_show_it() -> None:
    assert "fullgraph" not in break_action("something new (In[3]:5)")
    assert "fullgraph" in break_action("something new")
    theirs = "(/venv/lib/site-packages/transformers/utils.py:12)"
    assert break_action(f"print {theirs}") == "nothing: the line is in transformers"
    assert "set torch._dynamo.config" in break_action(f"Unsupported Tensor.item() {theirs}")


def test_addresses_of_objects_are_not_shown() -> None:
    guard = "0/0: ___check_obj_id(act.__code__, 140259201495072), type=<class 'code'> # f(1, 140259201)"
    assert readable(guard) == "0/0: ___check_obj_id(act.__code__), type=<class 'code'> # f(1, 140259201)"
    assert (
        readable("Cached backend: W('eager') (id=0x7f907bee3490). New") == "Cached backend: W('eager'). New"
    )
    threads = "torch's global state changed: number of threads"
    assert readable("0/1: GLOBAL_STATE changed: num_threads ") == f"0/1: {threads} "


CURES = """
    import numpy, torch, torch._dynamo
    from torch._dynamo.testing import CompileCounter

    def compiled(function, *calls, **options):
        "Return after each call how many graphs there are."
        torch._dynamo.reset()
        counter, counts = CompileCounter(), []
        now = torch.compile(function, backend=counter, **options)
        for call in calls:
            now(*call)
            counts.append(counter.frame_count)
        return counts

    class Counts(torch.nn.Module):
        def __init__(self, step):
            super().__init__()
            self.step = step
        def forward(self, x):
            self.step += 1
            return x * self.step

    def plus(x):
        return x + 1

    def times(x, k):
        return x * k

    def of_size(*sizes, mark=lambda x, dim: None):
        x = torch.ones(*sizes)
        mark(x, 0)
        return (x,)

    x, y = torch.ones(4, 4), torch.ones(4, 4)
    three = of_size(4, 8), of_size(6, 8), of_size(7, 8)
    dynamic, unbacked = torch._dynamo.mark_dynamic, torch._dynamo.decorators.mark_unbacked
    with torch.inference_mode():
        inferred = torch.ones(4, 4)

    assert compiled(Counts(0), (x,), (x,), (x,)) == [1, 2, 3]
    assert compiled(Counts(torch.tensor(0)), (x,), (x,), (x,)) == [1, 1, 1]
    assert compiled(times, (x, 2.0), (x, 3.0), (x, 4.0)) == [1, 2, 2]
    assert compiled(times, (x, torch.tensor(2)), (x, torch.tensor(3))) == [1, 1]
    assert compiled(plus, *three) == [1, 2, 2]
    assert compiled(plus, *three, dynamic=True) == [1, 1, 1]
    assert compiled(plus, of_size(4, 8, mark=dynamic), *three[1:]) == [1, 1, 1]
    assert compiled(plus, of_size(4, 8), of_size(1, 8), dynamic=True) == [1, 2]
    assert compiled(plus, of_size(4, 8, mark=unbacked), of_size(1, 8)) == [1, 1]
    assert compiled(plus, (x,), (x.t(),), dynamic=True) == [1, 2]
    assert compiled(plus, (x,), (x.t().contiguous(),)) == [1, 1]
    assert compiled(plus, (x,), (torch.nn.Parameter(x).detach(),)) == [1, 1]
    assert compiled(times, (x, y), (x, x)) == [1, 2]
    assert compiled(times, (x, y), (x, x.clone())) == [1, 1]
    with torch.no_grad():
        assert compiled(plus, (x,), (inferred,)) == [1, 2]
        assert compiled(plus, (x,), (inferred.clone(),)) == [1, 1]

    def places(x):
        return torch.nonzero(x * 2).sum() + 1

    def drawn(x):
        y = x * 2
        return y + numpy.random.rand()

    def drawn_by_torch(x):
        y = x * 2
        return y + torch.rand(())

    def summed(x):
        y = x * 2
        return y + y.sum().item()

    assert compiled(places, (x,)) == compiled(drawn, (x,)) == compiled(summed, (x,)) == [2]
    assert compiled(drawn_by_torch, (x,)) == [1]
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    assert compiled(places, (x,)) == [1]
    torch._dynamo.config.capture_scalar_outputs = True
    assert compiled(summed, (x,)) == [1]
"""


@pytest.mark.compile
def test_the_cures_help_in_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CURES)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_report_has_guards_in_the_names_of_the_users_code() -> None:
    guard = "2/0: G['k'] == 2.0  # return y * k  # In[6]:5 in torch_dynamo_resume_in_f_at_4"
    assert in_words(guard) == "2/0: k == 2.0 (return y * k, In[6]:5 in f)"
    assert in_words("0/0: L['self'].d.training == True") == "0/0: self.d.training == True"
