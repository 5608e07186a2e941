"""Advice for a recompile, by the guard that failed as torch writes it."""

from __future__ import annotations

import re

_COMPILE_ID = re.compile(r"(?:(\d+)/(\d+): )?")
_COMMENT = re.compile(r"\s+# ")
_IDENTITY = re.compile(r"(___check_(?:obj|type)_id\(.*?), \d{6,}\)|\s*\(id=0x[0-9a-f]+\)")
_STATE = re.compile(r"GLOBAL_STATE changed: *([^#\n]*)")
_VALUE = re.compile(r"(?P<name>.+?) (?:==|!=) (?P<value>.+)")
_NUMBER = re.compile(r"-?(\d|inf\b|nan\b)")
_SPECIAL = re.compile(r".*?(?P<tensor>\w+)\.size\(\)\[(?P<dim>\d+)\].*0/1 specialization")
_EACH = "nothing: each value has a version of its own"
_OPTIONAL = "nothing: with the argument and without it, each has a version"
_DYNAMIC = "compile with dynamic=True"
_ONE_OR_ZERO = (
    "nothing: torch compiles sizes 0 and 1 apart, also with dynamic=True, "
    "unless you call torch._dynamo.decorators.mark_unbacked({tensor}, {dim})"
)
_OTHER_SIZE = (
    f"{_DYNAMIC}, or call torch._dynamo.mark_dynamic({{tensor}}, {{dim}}), to spare this; "
    "the version made now serves other sizes as well, unless dynamic=False"
)
_OTHER_KIND = (
    "keep it on one device and in one layout, dense or sparse, and make it outside of "
    "torch.inference_mode(), or keep both: each has a version"
)
_TENSOR = "tensor '(?P<tensor>.+)' "
_OF_PARAMETER = "mismatch.*Guard failed on a parameter"
_RULES = (
    (r".*(?:deallocated|invalidated)", "make the model and its optimizer once: new ones compile anew"),
    ("GLOBAL_STATE changed: *(?P<modes>.+)", "call it in the same mode each time: {modes}"),
    (r"GLOBAL_STATE|.*(?:grad_mode|[Gg]lobal state)", "call it in the same mode: gradients, autocast"),
    ("BACKEND_MATCH", "call torch.compile once, with one backend and mode: each has its own versions"),
    (r".* is (?:not )?None$", _OPTIONAL),
    (r"Duplicate tensors found|\S+ is \w", "pass two tensors, such as x and x.clone(), or always one twice"),
    (r"___check_type_id\(.*'(?:int|float)'", "nothing, if it is a tensor now; else pass the same type"),
    (r"___check_type_id\(.*<class '(?:.*\.)?(?P<type>\w+)", "pass the same type each time, such as {type}"),
    (r"___check_obj_id.*'(?:code|function)'", "pass the same function: each new one has a version"),
    ("___check_obj_id", "nothing: each object has a version of its own; where one would do, pass the same"),
    (r"(?:not )?(?:___dict_contains|\w+\.__contains__)", "pass the same keys each time"),
    (r"(?:not )?(?:hasattr|___has)", "set the attribute before the first call"),
    (r"len\(.*\.state\[", "nothing: an optimizer makes its state in the first step, and compiles once more"),
    (r"len\((.*)\) (?:==|!=)|not [\w.\[\]'\"]+$", "keep the length: each length has a version of its own"),
    (f"{_TENSOR}dtype", "cast it before the call, such as {tensor}.to(dtype), or keep both versions"),
    (f"{_TENSOR}requires_grad {_OF_PARAMETER}", "nothing, if you have frozen it: each state has a version"),
    (f"{_TENSOR}requires_grad", "keep its requires_grad the same; {tensor}.detach() needs no gradient"),
    (f"{_TENSOR}rank", "call it with as many dimensions each time: dynamic=True does not serve others"),
    (f"{_TENSOR}stride", "lay tensors out alike, such as {tensor}.contiguous(); dynamic=True is no help"),
    (f"{_TENSOR}size {_OF_PARAMETER}", "nothing: each size of the model has a version of its own"),
    (rf"{_TENSOR}size mismatch at index (?P<dim>\d+)\. expected (?:[01],|\d+, actual [01]\b)", _ONE_OR_ZERO),
    (rf"{_TENSOR}size mismatch(?: at index (?P<dim>\d+))?", _OTHER_SIZE),
    (_TENSOR, _OTHER_KIND),
    ("expected type .*<class 'NoneType'>", _OPTIONAL),
    (r"expected type .*<class 'torch\.[\w.]+'>", "pass a tensor each time: of a Parameter, x.detach()"),
    ("expected type ", "pass tensors of the same class each time"),
    (r".*\.(?:size|stride)\(\)\[", "nothing: the code asks for the size, and each answer has a version"),
)
"""Advice by the beginning of a guard; the first rule that matches applies."""


def readable(guards: str) -> str:
    """Return guards without the addresses of objects, which help no reader."""
    guards = _IDENTITY.sub(lambda match: f"{match[1]})" if match[1] else "", guards)
    return _STATE.sub(lambda match: f"torch's global state changed: {_modes(match[1])}", guards)


def _modes(names: str) -> str:
    return ", ".join(names.replace("num_threads", "number_of_threads").split()).replace("_", " ")


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
    return "keep what the guard asks for as it is between calls"


def _fill_in(action: str, match: re.Match[str]) -> str:
    names = {"dim": "dim"} | {name: text for name, text in match.groupdict().items() if text}
    if not names.get("tensor", "").isidentifier():
        names["tensor"] = "x"
    names["modes"] = _modes(names.get("modes", ""))
    return action.format(**names)


def _value_action(name: str, value: str, is_first: bool) -> str:
    """Return what to do about a value; `is_first`: whether the function had one version."""
    if name.endswith(".training"):
        return "nothing: train and eval each have a version"
    if _NUMBER.match(value) is None:
        return _EACH
    if "param_groups" in name and name.endswith("['lr']"):
        return "give it to the optimizer as a tensor: lr=torch.tensor(0.001)"
    if "param_groups" in name:
        return "nothing: torch takes it as a variable from its second value on" if is_first else _EACH
    if is_first and (name.isidentifier() or not value.lstrip("-").isdecimal()):
        advice = "nothing, where it is only calculated with: torch takes it as a variable from now on"
        return f"{advice}; as a tensor it need not compile twice"
    attribute = "make the attribute a tensor" if re.search(r"\.\w+$", name) else "make it a tensor"
    return f"{attribute}, where it is only calculated with; else each value has a version of its own"
