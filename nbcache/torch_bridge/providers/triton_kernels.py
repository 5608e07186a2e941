"""Triton kernels of a restored graph, and Triton's own modules in C: none is compiled or tuned again.

A graph brings the machine code of all configurations of its kernels that were compiled with it
(`TritonBundler`). Coordinate descent, which `max-autotune` turns on, tries others when the graph first runs:
the one that it finds is in no torch bundle, and is an artifact of its own here.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import re
import sysconfig
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.core.canonical_json import corrupt, from_json, to_json
from nbcache.core.files import write_whole
from nbcache.core.key import components, digest
from nbcache.core.model import Artifact
from nbcache.torch_bridge.events import CANDIDATE
from nbcache.torch_bridge.providers.cpp_kernels import compiled_since, place
from nbcache.torch_bridge.recording import count_and_record, kernels_are_replaced, restored
from nbcache.torch_bridge.torch_behavior import TORCHBEHAVIOR

if TYPE_CHECKING:
    from nbcache.torch_bridge.context import Context
    from nbcache.torch_bridge.patches import Patches


KERNEL, MODULE = "triton_kernel", "triton_module"
"""The types of these artifacts."""
_KEY = re.compile(r"[A-Z2-7]{52}")
"""Triton's hash of a kernel, which is the name of its folder."""
_CODE = ".cubin"
"""The ending of machine code; that for other makers' GPUs has another."""
_GROUP = "__grp__"
"""The beginning of the name of Triton's list of a kernel's files, without which it finds none."""
_ENDINGS = (".json", _CODE)
"""The endings of those files of a kernel that running it takes."""
_FILE = re.compile(r"\w[\w.]*\.(json|cubin)")
_FOLDER = b"[nbcache folder]"
"""The substitute for a kernel's folder in the JSON that is stored."""
_KNOWN = ("ccflags", "include_dirs", "libraries", "library_dirs")
"""Options of Triton's that are parts of a module's key by themselves, or in none."""


def settle_assembler(async_compile: ModuleType, context: Context, patches: Patches) -> None:
    """Choose ptxas before anything asks for its version, which each key of Triton's holds.

    torch chooses its own when it first compiles a kernel here: after it has made keys where a graph is
    compiled, before that where one hits. A user's kernel then has another key, and is compiled again.
    """
    name = "TRITON_PTXAS_PATH"
    before = os.environ.get(name)
    async_compile._set_triton_ptxas_path()
    ours = os.environ.get(name)

    def undo() -> None:
        if before is None and ours is not None and os.environ.get(name) == ours:
            del os.environ[name]
            async_compile._set_triton_ptxas_path.cache_clear()

    patches.undo(undo)


def bundle_what_runs(heuristics: ModuleType, context: Context, patches: Patches) -> None:
    """Bundle with a graph the kernels that the graph runs, and no candidate of `max-autotune`.

    torch 2.11 puts in all that was compiled meanwhile: for each matrix product dozens of kernels, which every
    hit elsewhere writes to disk again. 2.13 leaves out what has not run meanwhile, once anything has: the
    candidates have, and the graph's own kernels have not, so that hits elsewhere compile those again.
    """
    bundler, tuner, trying = heuristics.TritonBundler, heuristics.CachingAutotuner, threading.local()

    def within(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        before = getattr(trying, "now", False)
        trying.now = self.inductor_meta.get("kernel_name") == CANDIDATE
        try:
            return original(self, *args, **kwargs)
        finally:
            trying.now = before

    def unless_trying(original: Any, *args: Any, **kwargs: Any) -> Any:
        return None if getattr(trying, "now", False) else original(*args, **kwargs)

    def forget(original: Any, *args: Any, **kwargs: Any) -> None:
        pass

    for name in ("precompile", "_precompile_config"):
        patches.hook(tuner, name, within)
    patches.hook(bundler, "put", unless_trying)
    patches.hook(bundler, "put_static_autotuner", unless_trying)
    if TORCHBEHAVIOR.bundles_winners:
        patches.hook(bundler, "put_winner", forget)


def provide_tuned(heuristics: ModuleType, context: Context, patches: Patches) -> None:
    """Record the machine code that coordinate descent ends with; make it present before torch compiles it.

    Within `CachingAutotuner._precompile_config` of a configuration that was found so, Triton looks for a
    folder that is named by the kernel's hash: `FileCacheManager.get_group`.
    """
    if importlib.util.find_spec("triton") is None:
        return
    from triton.runtime.cache import FileCacheManager

    session, tuner, looking = context.session, heuristics.CachingAutotuner, threading.local()

    def note(self: Any, launcher: Any, began: float) -> None:
        """Record a kernel that was compiled since `began` (Unix time), or that is in nbcache's folder."""
        if kernels_are_replaced():
            return
        compiled = [heuristics.triton_config_to_hashable(each.config) for each in self.compile_results]
        if heuristics.triton_config_to_hashable(launcher.config) in compiled:
            return  # the graph has it
        folder = Path(heuristics.triton_cache_dir(self.device_props.index), launcher.cache_hash)
        code = next(folder.glob(f"*{_CODE}"), None)
        if code is None:
            return  # for a GPU of another maker, or kept by a cache of the user's own
        ours = context.owned() and Path(heuristics.cache_dir()) in folder.parents
        made = compiled_since(began, code.stat()) or ours
        count_and_record(session, Artifact(KERNEL, launcher.cache_hash, pack(folder)), made=made)

    def coordinate_descent_tuning(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        began = time.time()
        best = original(self, *args, **kwargs)
        if getattr(getattr(best, "config", None), "found_by_coordesc", False):
            session.attempt("recording a tuned kernel", partial(note, self, best, began))
        return best

    def _precompile_config(original: Any, self: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
        looking.now = getattr(config, "found_by_coordesc", False)
        try:
            return original(self, config, *args, **kwargs)
        finally:
            looking.now = False

    def make_present(manager: Any) -> bool:
        if not context.serving() or not _KEY.fullmatch(manager.key):
            return False

        def use(artifact: Artifact) -> bool:
            unpack(artifact.content, Path(manager.cache_dir))
            return True

        return bool(restored(session, KERNEL, manager.key, use))

    def get_group(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(self, *args, **kwargs)
        if found is None and getattr(looking, "now", False):
            looking.now = False
            if session.attempt("restoring a tuned kernel", partial(make_present, self)):
                found = original(self, *args, **kwargs)
        return found

    patches.hook(tuner, "coordinate_descent_tuning", coordinate_descent_tuning)
    patches.hook(tuner, "_precompile_config", _precompile_config)
    patches.hook(FileCacheManager, "get_group", get_group)


def pack(folder: Path) -> bytes:
    """Return as an artifact's content those files of a kernel's folder that running it takes.

    Triton writes absolute paths into its JSON; they are stored relative to the folder.
    """
    contents = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in _ENDINGS}
    files = {}
    for name, content in contents.items():
        if name.startswith(_GROUP):
            content = _group(content, contents, os.fsdecode(_FOLDER))
        elif name.endswith(".json"):
            content = content.replace(os.fsencode(folder), _FOLDER)
        files[name] = base64.b64encode(content).decode()
    return to_json(KERNEL, {"files": files})


def _group(content: bytes, names: Collection[str], folder: str) -> bytes:
    """Return Triton's list of a kernel's files, with `names` only, as in `folder`; FormatError for no list.

    Since Triton 3.8 it finds none of them where one that is listed is missing.
    """
    try:
        listed = json.loads(content)["child_paths"]
        children = {name: os.path.join(folder, name) for name in listed if name in names}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise corrupt(f"a {KERNEL} does not name its files") from error
    return json.dumps({"child_paths": children}).encode()


def unpack(content: bytes, folder: Path) -> None:
    """Write what `pack` gave into `folder`, last what names the rest; FormatError for anything else.

    Triton finds nothing there before that.
    """
    files: dict[str, bytes] = {}
    for name, text in from_json(content, KERNEL).object("files").items():
        if not _FILE.fullmatch(name) or not isinstance(text, str):
            raise corrupt(f"a {KERNEL} holds something else than files of a kernel")
        try:
            files[name] = base64.b64decode(text, validate=True)
        except ValueError as error:
            raise corrupt(f"a {KERNEL} holds a file that is not base64") from error
    in_order = sorted(files, key=lambda name: name.startswith(_GROUP))
    endings = {Path(name).suffix for name in files}
    if not in_order or not in_order[-1].startswith(_GROUP) or _CODE not in endings:
        raise corrupt(f"a {KERNEL} holds no machine code, or does not name its files")
    for name in in_order:
        if name.startswith(_GROUP):
            files[name] = _group(files[name], files, str(folder))
        elif name.endswith(".json"):
            files[name] = files[name].replace(_FOLDER, os.fsencode(folder))
    folder.mkdir(parents=True, exist_ok=True)
    for name in in_order:  # another process may be compiling into the same folder just now
        write_whole(folder / name, files[name])


# --- modules in C -------------------------------------------------------------------------------------


def module_key(src: str, name: str, options: dict[str, Any]) -> str:
    """Return the key of a module, 64 hexadecimal digits; folders of headers and libraries are not in it.

    `options` are those of Triton's `compile_module_from_src`, or `compile_module_from_file`.
    """
    parts = {
        "source": src,
        "name": name,
        "suffix": sysconfig.get_config_var("EXT_SUFFIX"),
        "libraries": options.get("libraries") or [],
        "flags": options.get("ccflags") or [],
        **{f"option {option}": repr(value) for option, value in options.items() if option not in _KNOWN},
    }
    return digest(components(parts))


def provide_modules(driver: ModuleType, context: Context, patches: Patches) -> None:
    """Stand in for what Triton's `driver` compiles its modules with: load what is stored, or compile.

    Triton talks to the driver through a module, `cuda_utils`, which it compiles on each new machine, and so
    does every launcher of a kernel that Inductor's static launcher does not launch. On a fresh machine that
    takes the C compiler, Python's headers and tenths of a second each. They are kept by their source, in the
    session's environment, which adds Triton's version, the Python ABI and the C library's.

    The function is `compile_module_from_src`, since Triton 3.8 `compile_module_from_file`. Triton looks in
    its own cache, below the user's home, only for a module that is not stored.
    """
    session = context.session

    def module(
        compile: Callable[[], Any], read: Callable[[], str], name: str, args: tuple[Any, ...], options: Any
    ) -> Any:
        key = session.attempt("restoring a module of Triton", partial(key_of, read, name, args, options))
        if key is None:
            return compile()
        module = session.attempt("restoring a module of Triton", partial(stored, key, name))
        if module is None:
            began = time.time()
            module = compile()
            session.attempt("recording a module of Triton", partial(note, key, module, began))
        return module

    def key_of(read: Callable[[], str], name: str, args: tuple[Any, ...], options: Any) -> str | None:
        """Return a module's key; None where nothing is served, or where Triton asks in another way."""
        return None if args or not context.serving() else module_key(read(), name, options)

    def stored(key: str, name: str) -> Any:
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        return restored(session, MODULE, key, lambda artifact: _loaded(name, place(cache_dir(), artifact)))

    def note(key: str, module: ModuleType, began: float) -> None:
        """Record a module that was compiled since `began` (Unix time), or by this user before."""
        path = Path(str(module.__file__))
        status = path.stat()
        made = compiled_since(began, status) or (context.owned() and status.st_uid == os.getuid())
        count_and_record(session, Artifact(MODULE, key, path.read_bytes()), made=made)

    def compile_module_from_src(original: Any, src: str, name: str, *args: Any, **options: Any) -> Any:
        compile = partial(original, src, name, *args, **options)
        return module(compile, lambda: src, name, args, options)

    def compile_module_from_file(original: Any, src_path: str, name: str, *args: Any, **options: Any) -> Any:
        compile, path = partial(original, src_path, name, *args, **options), Path(src_path)
        return module(compile, path.read_text, name, args, {**options, "language": path.suffix})

    if hasattr(driver, "compile_module_from_file"):  # since Triton 3.8
        patches.hook(driver, "compile_module_from_file", compile_module_from_file)
    else:
        patches.hook(driver, "compile_module_from_src", compile_module_from_src)


def _loaded(name: str, path: Path) -> ModuleType:
    """Return a module of Triton's, which is in no `sys.modules`, loaded from a file."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
