"""What a person can do about a recompile, by the guard that failed as torch writes it."""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = ["dynamic_spares", "readable", "recompile_action", "tells_more"]

_WHICH = re.compile(r"(?:(\d+)/(\d+): )?")
"""What stands before a guard: the compile that it belongs to."""
_COMMENT = re.compile(r"\s+# ")
"""What separates a guard from the code that it is of."""
_IDENTITY = re.compile(r"(___check_(?:obj|type)_id\(.*?), \d{6,}\)|\s*\(id=0x[0-9a-f]+\)")
_TENSOR = re.compile(r"tensor '(?P<name>.+)' (?P<what>[\w ]+) mismatch(?P<rest>.*)")
_ON_PARAMETER = "Guard failed on a parameter"
_SIZES = re.compile(r" at index (\d+)\. expected (\d+), actual (\d+)")
_KEY_SETS = re.compile(r"expected DispatchKeySet\((.*?)\), actual DispatchKeySet\((.*?)\)")
_FOUND = re.compile(r"expected type of '.*' to be a tensor type, ' but found <class '(.*)'>")
_VALUE = re.compile(r"(?P<name>.+?) (?:==|!=) (?P<value>.+)")
_NUMBER = re.compile(r"-?(\d|inf\b|nan\b)")
_STATE = re.compile(r"len\(.*\.state\[")
_LEARNING_RATE = re.compile(r"param_groups\[\d+\]\['lr'\]$")
_MODES = (
    ("grad_mode", "gradients"),
    ("autocast", "autocast"),
    ("default_dtype", "default dtype"),
    ("num_threads", "number of threads"),
    ("deterministic", "deterministic algorithms"),
    ("allow_tf32|precision|reduce", "matmul precision"),
    ("torch_function", "torch function modes"),
)
"""What people call the parts of torch's global state."""
_EACH = "nothing: each value has a version of its own"
_MODE = "call it in the same mode: gradients, autocast, default dtype, threads"
_ONE_OR_ZERO = (
    "nothing: torch compiles sizes 0 and 1 apart, also with dynamic=True, "
    "unless you call torch._dynamo.decorators.mark_unbacked({tensor}, {dim})"
)


def readable(guards: str) -> str:
    """Return guards without the addresses of objects, which tell a person nothing."""
    return _IDENTITY.sub(lambda match: f"{match[1]})" if match[1] else "", guards)


def dynamic_spares(guard: str) -> bool:
    """Tell whether dynamic=True from the start would have spared a recompile, by the guard that failed."""
    found = _TENSOR.match(guard[_which(guard).end() :])
    if found is None or found["what"] != "size" or _ON_PARAMETER in guard:
        return False
    sizes = _SIZES.match(found["rest"])
    return sizes is None or {sizes[2], sizes[3]}.isdisjoint("01")


def _which(guard: str) -> re.Match[str]:
    found = _WHICH.match(guard)
    assert found is not None  # it matches nothing as well
    return found


def tells_more(guards: str) -> bool:
    """Tell whether guards say better what to do than how the graphs differ: lengths, types, an optimizer."""
    return re.match(r"(?:\d+/\d+: )?(?:len\(|not |___check_type_id\()", guards.strip()) is not None


def recompile_action(guards: str) -> str:
    """Return one thing to do about a recompile, by the guards that failed, one a line; the first counts."""
    line = (guards.strip().splitlines() or [""])[0]
    which = _which(line)
    of_first = which[2] == "0"
    guard, *comments = _COMMENT.split(line[which.end() :].strip())
    for pattern, action in _RULES:
        if (match := re.match(pattern, guard)) is not None:
            return action if isinstance(action, str) else action(match)
    if (found := _TENSOR.match(guard)) is not None:
        return _of_tensor(found, _ON_PARAMETER in line)
    if (found := _FOUND.match(guard)) is not None:
        return _of_class(found[1])
    if ".size()[" in guard or ".stride()[" in guard:
        return _of_size(guard, " ".join(comments))
    if (found := _VALUE.fullmatch(guard)) is not None:
        return _of_value(found["name"], found["value"], of_first)
    return "keep what the guard asks for as it is between calls"


def _of_state(match: re.Match[str]) -> str:
    names = [name for pattern, name in _MODES if re.search(pattern, match[1])]
    return f"call it in the same mode each time: {', '.join(names)}" if names else _MODE


def _of_object(match: re.Match[str]) -> str:
    if "<class 'code'>" in match[1] or "<class 'function'>" in match[1]:
        return "pass the same function each time: each function that is written anew has a version of its own"
    return "nothing: each object has a version of its own; where one would do, pass the same"


_RULES: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (
        r".*(?:deallocated|invalidated)",
        "make the model and its optimizer once: a cell that makes them anew compiles anew",
    ),
    (r"GLOBAL_STATE changed:(.*)", _of_state),
    (r".*(?:grad_mode|[Gg]lobal state)", _MODE),
    ("BACKEND_MATCH", "call torch.compile once, with one backend and mode: each has its own versions"),
    (
        r"Duplicate tensors found|(?!.* (?:==|!=) )[\w.\[\]'\"]+ is (?!None\b|not None\b)[A-Za-z_]",
        "always pass two tensors, such as x and x.clone(), or always the same one twice",
    ),
    (r".* is (?:not )?None$", "nothing: with the argument and without it, each has a version"),
    (
        r"___check_type_id\(.*type=<class '(?:int|float)'>",
        "nothing, if it is a tensor now: no other value compiles again; else pass the same type each time",
    ),
    (
        r"___check_type_id\(.*type=<class '([\w.]+)'>",
        lambda match: f"pass the same type each time, such as {match[1].rpartition('.')[2]}",
    ),
    (r"___check_obj_id(.*)", _of_object),
    (r"(?:not )?(?:___dict_contains|set\.__contains__|dict\.__contains__)", "pass the same keys each time"),
    (r"(?:not )?(?:hasattr|___has)", "set the attribute before the first call"),
    (_STATE.pattern, "nothing: an optimizer makes its state in the first step, and is compiled once more"),
    (r"len\((.*)\) (?:==|!=)|not [\w.\[\]'\"]+$", "keep the length: each length has a version of its own"),
)
"""What to do, by how a guard begins."""


def _of_tensor(found: re.Match[str], of_parameter: bool) -> str:
    what, rest = found["what"], found["rest"]
    tensor = found["name"] if found["name"].isidentifier() else "x"
    if what == "dtype":
        return f"cast it before the call, such as {tensor}.to(dtype), or keep both: each dtype has a version"
    if what == "requires_grad":
        if of_parameter:
            return "nothing, if you have frozen it, or no more: each state has a version"
        return f"pass it with the same requires_grad each time; {tensor}.detach() needs no gradient"
    if what == "rank":
        return "call it with as many dimensions each time: dynamic=True does not serve other numbers of them"
    if what == "stride":
        return f"call it with tensors laid out alike, such as {tensor}.contiguous(); dynamic=True is no help"
    if what == "size":
        if of_parameter:
            return "nothing: each size of the model has a version; dynamic=True does not serve its parameters"
        return _of_input_size(tensor, rest)
    return _of_key_set(tensor, rest)


def _of_input_size(tensor: str, rest: str) -> str:
    sizes = _SIZES.match(rest)
    dim = sizes[1] if sizes else "dim"
    if sizes and not {sizes[2], sizes[3]}.isdisjoint("01"):
        return _ONE_OR_ZERO.format(tensor=tensor, dim=dim)
    spare = f"compile with dynamic=True, or call torch._dynamo.mark_dynamic({tensor}, {dim}), to spare this"
    return f"{spare}; the version made now serves other sizes as well, unless dynamic=False"


def _of_key_set(tensor: str, rest: str) -> str:
    """Return what to do about a tensor of another device, layout or mode."""
    sets = _KEY_SETS.search(rest)
    before, now = ({key.strip() for key in sets[n].split(",")} for n in (1, 2)) if sets else (set(), set())
    apart = before ^ now
    if any(key.startswith("Sparse") for key in apart):
        return "pass it in one layout, dense or sparse, or keep both: each has a version"
    if apart and all(key.startswith(("Autograd", "ADInplace")) for key in apart):
        outside = f"made outside of torch.inference_mode(), such as {tensor}.clone()"
        return f"always pass tensors {outside}, or always such from inside"
    return "keep it on one device, or keep both: each has a version"


def _of_class(name: str) -> str:
    if name == "NoneType":
        return "nothing: with the argument and without it, each has a version"
    if name in ("torch.Tensor", "torch.nn.parameter.Parameter"):
        return "always pass a tensor, or always a Parameter: x.detach() makes a tensor of one"
    return "pass tensors of the same class each time"


def _of_size(guard: str, comment: str) -> str:
    """Return what to do about a condition on sizes that are dynamic."""
    if "0/1 specialization" in comment:
        found = re.search(r"(\w+)\.size\(\)\[(\d+)\]", guard)
        tensor, dim = (found[1], found[2]) if found else ("x", "dim")
        return _ONE_OR_ZERO.format(tensor=tensor, dim=dim)
    return "nothing: the code asks for the size, and each answer has a version; dynamic=True is no help"


def _of_value(name: str, value: str, of_first: bool) -> str:
    """Return what to do about a value; `of_first` tells whether the function had one version."""
    if name.endswith(".training"):
        return "nothing: train and eval each have a version"
    if _NUMBER.match(value) is None:
        return _EACH
    if _LEARNING_RATE.search(name):
        return "give it to the optimizer as a tensor: lr=torch.tensor(0.001)"
    if "param_groups" in name:
        return "nothing: torch takes it as a variable from its second value on" if of_first else _EACH
    if of_first and (name.isidentifier() or not value.lstrip("-").isdecimal()):
        taken = "nothing, where it is only calculated with: torch takes it as a variable from now on"
        return f"{taken}; as a tensor it need not compile twice"
    attribute = "make the attribute a tensor" if re.search(r"\.\w+$", name) else "make it a tensor"
    return f"{attribute}, where it is only calculated with; else each value has a version of its own"
