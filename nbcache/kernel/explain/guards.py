"""Advice for a recompile, by the guard that failed as torch writes it."""

from __future__ import annotations

import re

_COMPILE_ID = re.compile(r"(?:(\d+)/(\d+): )?")
_COMMENT = re.compile(r"\s+# ")
_IDENTITY = re.compile(r"(___check_(?:obj|type)_id\(.*?), \d{6,}\)|\s*\(id=0x[0-9a-f]+\)")
_VALUE = re.compile(r"(?P<name>.+?) (?:==|!=) (?P<value>.+)")
_NUMBER = re.compile(r"-?(\d|inf\b|nan\b)")
_SPECIAL = re.compile(r".*?(?P<tensor>\w+)\.size\(\)\[(?P<dim>\d+)\].*0/1 specialization")
_EACH = "nothing: each value has its own version"
_OPTIONAL = "nothing: with and without the argument, it has a version each"
_DYNAMIC = "compile with dynamic=True"
_ONE_OR_ZERO = (
    "nothing: torch compiles sizes 0 and 1 separately, also with dynamic=True, "
    "unless you call torch._dynamo.decorators.mark_unbacked({tensor}, {dim})"
)
_OTHER_SIZE = (
    f"{_DYNAMIC}, or call torch._dynamo.mark_dynamic({{tensor}}, {{dim}}), to avoid this; "
    "the new version also serves other sizes, unless dynamic=False"
)
_OTHER_KIND = (
    "keep it on one device, in one layout (dense or sparse), and create it outside "
    "torch.inference_mode(); or keep both versions"
)
_TENSOR = "tensor '(?P<tensor>.+)' "
_OF_PARAMETER = "mismatch.*Guard failed on a parameter"
_RULES = (
    (r".*(?:deallocated|invalidated)", "create model and optimizer once: new ones compile again"),
    ("GLOBAL_STATE changed: *(?P<modes>.+)", "call it in the same mode each time: {modes}"),
    (r"GLOBAL_STATE|.*(?:grad_mode|[Gg]lobal state)", "call it in the same mode: gradients, autocast"),
    ("BACKEND_MATCH", "call torch.compile once, with one backend and mode: each has its own versions"),
    (r".* is (?:not )?None$", _OPTIONAL),
    (r"Duplicate tensors found|\S+ is \w", "pass x and x.clone(), or the same tensor twice each time"),
    (r"___check_type_id\(.*'(?:int|float)'", "nothing, if it is a tensor now; else pass the same type"),
    (r"___check_type_id\(.*<class '(?:.*\.)?(?P<type>\w+)", "pass the same type each time, such as {type}"),
    (r"___check_obj_id.*'(?:code|function)'", "pass the same function: each new one has a version"),
    ("___check_obj_id", "nothing: each object has its own version; pass the same object if one is enough"),
    (r"(?:not )?(?:___dict_contains|\w+\.__contains__)", "pass the same keys each time"),
    (r"(?:not )?(?:hasattr|___has)", "set the attribute before the first call"),
    (r"len\(.*\.state\[", "nothing: an optimizer creates its state in step one, and compiles again"),
    (r"len\((.*)\) (?:==|!=)|not [\w.\[\]'\"]+$", "keep the length: each length has its own version"),
    (f"{_TENSOR}dtype", "cast it before the call, such as {tensor}.to(dtype), or keep both versions"),
    (f"{_TENSOR}requires_grad {_OF_PARAMETER}", "nothing, if you froze it: both states have a version"),
    (f"{_TENSOR}requires_grad", "keep its requires_grad the same; {tensor}.detach() needs no gradient"),
    (f"{_TENSOR}rank", "call it with the same number of dimensions each time: dynamic=True does not help"),
    (f"{_TENSOR}stride", "use one memory layout, such as {tensor}.contiguous(); dynamic=True does not help"),
    (f"{_TENSOR}size {_OF_PARAMETER}", "nothing: each size of the model has its own version"),
    (rf"{_TENSOR}size mismatch at index (?P<dim>\d+)\. expected (?:[01],|\d+, actual [01]\b)", _ONE_OR_ZERO),
    (rf"{_TENSOR}size mismatch(?: at index (?P<dim>\d+))?", _OTHER_SIZE),
    (_TENSOR, _OTHER_KIND),
    ("expected type .*<class 'NoneType'>", _OPTIONAL),
    (r"expected type .*<class 'torch\.[\w.]+'>", "pass a tensor each time: for a Parameter, x.detach()"),
    ("expected type ", "pass tensors of the same class each time"),
    (r".*\.(?:size|stride)\(\)\[", "nothing: the code asks for the size, so each size has its own version"),
)
"""Advice by the beginning of a guard; the first rule that matches applies."""


def readable(guards: str) -> str:
    """Return guards without the addresses of objects, which help no reader."""
    guards = _IDENTITY.sub(lambda match: f"{match[1]})" if match[1] else "", guards)
    guards = guards.replace("GLOBAL_STATE changed", "torch's global state changed")
    return guards.replace("state changed: num_threads", "state changed: number of threads")


def in_words(guards: str) -> str:
    """Return guards in the names of the user's code: `k == 2.0 (return y * k, In[6]:5 in f)`."""
    names = re.sub(r"\b[GL]\['(\w+)'\]", r"\1", readable(guards))
    functions = re.sub(r"\b(?:torch_dynamo_resume_in_)+(\w+?)(?:_at_\d+)+\b", r"\1", names)
    return re.sub(r" +# (.*?) +# (.*)", r" (\1, \2)", functions)


def dynamic_spares(guard: str) -> bool:
    """Return whether dynamic=True from the start would have spared a recompile, by the guard that failed."""
    return recompile_action(guard).startswith(_DYNAMIC)


def tells_more(guards: str) -> bool:
    """Return whether guards say more than the graphs' differences: lengths, types, an optimizer."""
    return re.match(r"(?:\d+/\d+: )?(?:len\(|not |___check_type_id\()", guards.strip()) is not None


def recompile_action(guards: str) -> str:
    """Return one thing to do about a recompile, by the guards that failed, one a line; the first decides."""
    line = (guards.strip().splitlines() or [""])[0]
    compile_id = _COMPILE_ID.match(line)
    assert compile_id is not None  # it matches nothing as well
    guard = _COMMENT.split(line[compile_id.end() :].strip())[0]
    if (match := _SPECIAL.match(line)) is not None:
        return _fill_in(_ONE_OR_ZERO, match)
    for pattern, action in _RULES:
        if (match := re.match(pattern, guard)) is not None:
            return _fill_in(action, match)
    if (match := _VALUE.fullmatch(guard)) is not None:
        return _value_action(match["name"], match["value"], compile_id[2] == "0")
    return "keep the value that the guard checks between calls"


def _fill_in(action: str, match: re.Match[str]) -> str:
    names = {"dim": "dim"} | {name: text for name, text in match.groupdict().items() if text}
    if not names.get("tensor", "").isidentifier():
        names["tensor"] = "x"
    names["modes"] = ", ".join(names.get("modes", "").split()).replace("_", " ")
    return action.format(**names)


def _value_action(name: str, value: str, is_first: bool) -> str:
    """Return what to do about a value; `is_first`: whether the function had one version."""
    if name.endswith(".training"):
        return "nothing: train mode and eval mode have a version each"
    if _NUMBER.match(value) is None:
        return _EACH
    if "param_groups" in name and name.endswith("['lr']"):
        return "give it to the optimizer as a tensor: lr=torch.tensor(0.001)"
    if "param_groups" in name:
        return "nothing: torch treats it as a variable from its second value on" if is_first else _EACH
    if is_first and (name.isidentifier() or not value.lstrip("-").isdecimal()):
        advice = "nothing, if the code only computes with it: torch treats it as a variable from now on"
        return f"{advice}; as a tensor it need not compile twice"
    attribute = "make the attribute a tensor" if re.search(r"\.\w+$", name) else "make it a tensor"
    return f"{attribute}, if the code only computes with it; else each value has its own version"
