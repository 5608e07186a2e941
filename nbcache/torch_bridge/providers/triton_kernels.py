"""Store and restore Triton kernels of graphs, their best configurations, and Triton's own C modules.

A graph contains the machine code of the configurations that were compiled with it (`TritonBundler`).
Coordinate descent, which `max-autotune` turns on, tries others when the graph first runs. torch bundles its
winner nowhere, so nbcache stores it as an artifact. Best configurations are separate artifacts.
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
from typing import Any

from nbcache.core.canonical_json import corrupt, from_json, to_json
from nbcache.core.files import write_whole
from nbcache.core.key import components, digest
from nbcache.core.model import Artifact
from nbcache.core.patches import Patches
from nbcache.kernel.events import KernelUsed
from nbcache.storage.mega_cache import AUTOTUNE_KEY
from nbcache.torch_bridge.events import stamp
from nbcache.torch_bridge.hooks import Context
from nbcache.torch_bridge.providers.cpp_kernels import compiled_since, place
from nbcache.torch_bridge.recording import (
    count_and_record,
    loaded,
    triton_replaces_kernels,
    use_newest,
    write_for_torch,
)
from nbcache.torch_bridge.torch_behavior import TORCHBEHAVIOR

KERNEL, MODULE = "triton_kernel", "triton_module"
_CANDIDATE_NAME = "Placeholder.DESCRIPTIVE_NAME"
"""torch's name for kernels that `max-autotune` compiles only to benchmark them (2.11, 2.13)."""
_NAME = re.compile(r"'kernel_name': '([^']*)'")
_KEY = re.compile(r"[A-Z2-7]{52}")
"""Triton's hash of a kernel, which is the name of its folder."""
_CODE = ".cubin"
_GROUP = "__grp__"
"""Prefix of the file in which Triton lists a kernel's files. Triton loads no file that is not listed."""
_ENDINGS = (".json", _CODE)
_FILE = re.compile(r"\w[\w.]*\.(json|cubin)")
_FOLDER = b"[nbcache folder]"
"""Substitute for the path of a kernel's folder in stored JSON."""
_KNOWN = ("ccflags", "include_dirs", "libraries", "library_dirs")
_RESTORING = "making a stored tuning result present"


def settle_assembler(async_compile: ModuleType, context: Context, patches: Patches) -> None:
    """Choose ptxas before Triton reads its version, which is part of each Triton key.

    torch chooses its own ptxas when it first loads a kernel. If a graph is compiled, that is after Triton
    made keys, and if a graph hits, before. So the keys of a user's kernels would differ.
    """
    name = "TRITON_PTXAS_PATH"
    original = os.environ.get(name)
    async_compile._set_triton_ptxas_path()
    ours = os.environ.get(name)

    def undo() -> None:
        if original is None and ours is not None and os.environ.get(name) == ours:
            del os.environ[name]
            async_compile._set_triton_ptxas_path.cache_clear()

    patches.undo(undo)


def bundle_what_runs(heuristics: ModuleType, context: Context, patches: Patches) -> None:
    """Bundle with a graph the kernels that the graph runs, without candidates of `max-autotune`.

    torch 2.11 bundles all kernels that were compiled with a graph: dozens for each matrix product, which each
    hit on another machine writes to disk. Once a kernel has run, torch 2.13 bundles only kernels that ran:
    the candidates, without the graph's own kernels, which a hit on another machine compiles again.
    """
    bundler, tuner, of_thread = heuristics.TritonBundler, heuristics.CachingAutotuner, threading.local()

    def precompile(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        """Note for `put_unless_candidate`, in this thread, whether the kernel is a candidate."""
        outer = getattr(of_thread, "is_candidate", False)
        of_thread.is_candidate = self.inductor_meta.get("kernel_name") == _CANDIDATE_NAME
        try:
            return original(self, *args, **kwargs)
        finally:
            of_thread.is_candidate = outer

    def put_unless_candidate(original: Any, *args: Any, **kwargs: Any) -> Any:
        return None if getattr(of_thread, "is_candidate", False) else original(*args, **kwargs)

    def ignore(original: Any, *args: Any, **kwargs: Any) -> None:
        pass

    for name in ("precompile", "_precompile_config"):
        patches.hook(tuner, name, precompile)
    patches.hook(bundler, "put", put_unless_candidate)
    patches.hook(bundler, "put_static_autotuner", put_unless_candidate)
    if TORCHBEHAVIOR.bundles_winners:
        patches.hook(bundler, "put_winner", ignore)


def provide_tuned(heuristics: ModuleType, context: Context, patches: Patches) -> None:
    """Record the machine code that coordinate descent chooses, and restore it before torch compiles it."""
    if importlib.util.find_spec("triton") is None:
        return
    from triton.runtime.cache import FileCacheManager

    session, tuner, of_thread = context.session, heuristics.CachingAutotuner, threading.local()

    def record(self: Any, launcher: Any, began: float) -> None:
        """Record a kernel that was compiled since `began` (Unix time), or that is in nbcache's folder."""
        if triton_replaces_kernels():
            return
        compiled = [heuristics.triton_config_to_hashable(one.config) for one in self.compile_results]
        if heuristics.triton_config_to_hashable(launcher.config) in compiled:
            return  # the graph's bundle has it
        folder = Path(heuristics.triton_cache_dir(self.device_props.index), launcher.cache_hash)
        code = next(folder.glob(f"*{_CODE}"), None)
        if code is None:
            return  # another vendor's GPU, or the user's own cache manager
        ours = context.owned() and Path(heuristics.cache_dir()) in folder.parents
        is_own = compiled_since(began, code.stat()) or ours
        count_and_record(session, Artifact(KERNEL, launcher.cache_hash, pack(folder)), made=is_own)

    def coordinate_descent_tuning(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        began = time.time()
        best = original(self, *args, **kwargs)
        if getattr(getattr(best, "config", None), "found_by_coordesc", False):
            session.attempt("recording a tuned kernel", partial(record, self, best, began))
        return best

    def _precompile_config(original: Any, self: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
        of_thread.is_winner = getattr(config, "found_by_coordesc", False)
        try:
            return original(self, config, *args, **kwargs)
        finally:
            of_thread.is_winner = False

    def restore(manager: Any) -> bool:
        if not context.serving() or not _KEY.fullmatch(manager.key):
            return False

        def unpack_into_folder(artifact: Artifact) -> bool:
            unpack(artifact.content, Path(manager.cache_dir))
            return True

        return bool(use_newest(session, KERNEL, manager.key, unpack_into_folder))

    def get_group(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        group = original(self, *args, **kwargs)
        if group is None and getattr(of_thread, "is_winner", False):
            of_thread.is_winner = False
            if session.attempt("restoring a tuned kernel", partial(restore, self)):
                group = original(self, *args, **kwargs)
        return group

    patches.hook(tuner, "coordinate_descent_tuning", coordinate_descent_tuning)
    patches.hook(tuner, "_precompile_config", _precompile_config)
    patches.hook(FileCacheManager, "get_group", get_group)


def pack(folder: Path) -> bytes:
    """Return the content of an artifact: the files that a kernel needs to run, with relative paths."""
    contents = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in _ENDINGS}
    files = {}
    for name, content in contents.items():
        if name.startswith(_GROUP):
            content = _group_file(content, contents, os.fsdecode(_FOLDER))
        elif name.endswith(".json"):
            content = content.replace(os.fsencode(folder), _FOLDER)
        files[name] = base64.b64encode(content).decode()
    return to_json(KERNEL, {"files": files})


def _group_file(content: bytes, names: Collection[str], folder: str) -> bytes:
    """Return Triton's list of files for `folder`, reduced to `names`: Triton 3.8 needs all listed files."""
    try:
        listed = json.loads(content)["child_paths"]
        children = {name: os.path.join(folder, name) for name in listed if name in names}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise corrupt(f"a {KERNEL} does not name its files") from error
    return json.dumps({"child_paths": children}).encode()


def unpack(content: bytes, folder: Path) -> None:
    """Write a packed kernel into `folder`, the list of its files last; FormatError for other content."""
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
            files[name] = _group_file(files[name], files, str(folder))
        elif name.endswith(".json"):
            files[name] = files[name].replace(_FOLDER, os.fsencode(folder))
    folder.mkdir(parents=True, exist_ok=True)
    for name in in_order:  # another process may compile into this folder at the same time
        write_whole(folder / name, files[name])


def module_key(src: str, name: str, options: dict[str, Any]) -> str:
    """Return a module's key, which leaves out the `options` for folders of headers and libraries."""
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
    """Load Triton's C modules if they are stored, and record the others.

    They are `cuda_utils`, and a launcher for each kernel without a static launcher. On a fresh machine each
    needs the C compiler, Python's headers and tenths of a second. The session's environment adds Triton's
    version and the ABIs of Python and the C library.
    """
    session = context.session

    def load_module(
        compile: Callable[[], Any], read: Callable[[], str], name: str, args: tuple[Any, ...], options: Any
    ) -> Any:
        key = session.attempt("restoring a module of Triton", partial(key_of, read, name, args, options))
        if key is None:
            return compile()
        module = session.attempt("restoring a module of Triton", partial(restore, key, name))
        if module is None:
            began = time.time()
            module = compile()
            session.attempt("recording a module of Triton", partial(record, key, module, began))
        return module

    def key_of(read: Callable[[], str], name: str, args: tuple[Any, ...], options: Any) -> str | None:
        return None if args or not context.serving() else module_key(read(), name, options)

    def restore(key: str, name: str) -> Any:
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        return use_newest(session, MODULE, key, lambda artifact: _load(name, place(cache_dir(), artifact)))

    def record(key: str, module: ModuleType, began: float) -> None:
        """Record a module; it is this user's if compiled since `began` (Unix time) or by this user before."""
        path = Path(str(module.__file__))
        status = path.stat()
        is_own = compiled_since(began, status) or (context.owned() and status.st_uid == os.getuid())
        count_and_record(session, Artifact(MODULE, key, path.read_bytes()), made=is_own)

    def compile_module_from_src(original: Any, src: str, name: str, *args: Any, **options: Any) -> Any:
        compile = partial(original, src, name, *args, **options)
        return load_module(compile, lambda: src, name, args, options)

    def compile_module_from_file(original: Any, src_path: str, name: str, *args: Any, **options: Any) -> Any:
        compile, path = partial(original, src_path, name, *args, **options), Path(src_path)
        return load_module(compile, path.read_text, name, args, {**options, "language": path.suffix})

    if hasattr(driver, "compile_module_from_file"):  # since Triton 3.8
        patches.hook(driver, "compile_module_from_file", compile_module_from_file)
    else:
        patches.hook(driver, "compile_module_from_src", compile_module_from_src)


def _load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def provide_autotune(module: ModuleType, context: Context, patches: Patches) -> None:
    """Write a kernel's best configuration before torch reads it, which torch 2.11 does in another module."""
    backend = vars(module).get("LocalCacheBackend") or vars(module).get("_LocalAutotuneCacheBackend")
    if backend is None and module.__name__.endswith("autotune_cache"):
        raise AttributeError(f"{module.__name__} has no backend for this machine")
    if backend is None or backend.__module__ != module.__name__:
        return

    def _get(original: Any, self: Any, path: str, *args: Any, **kwargs: Any) -> Any:
        context.session.attempt(_RESTORING, partial(_provide_tuning, context, path, partial(self._put, path)))
        content = original(self, path, *args, **kwargs)
        loaded.tuning = None if content is None else _tuning_key(path)
        return content

    patches.hook(backend, "_get", _get)


def follow_kernels(async_compile: ModuleType, context: Context, patches: Patches) -> None:
    """Count Triton kernels as graphs load them, and restore best configurations before workers compile."""
    from torch._guards import CompileContext

    session = context.session

    def restore_tuning(source: str) -> None:
        from torch._inductor.codecache import get_hash, get_path
        from torch._inductor.runtime.autotune_cache import AutotuneCache

        elsewhere = async_compile.AsyncCompile.use_process_pool()
        if not elsewhere or async_compile.CompiledTritonKernels.get(source) is not None:
            return  # no worker compiles it: `provide_autotune` serves this process
        file = get_path(get_hash(source.strip()), "py")[2]  # the path that `PyCodeCache.write` will use
        cache = AutotuneCache.create({}, file, "")
        if cache is not None and cache.local_cache is not None:
            path = cache.local_cache[1]
            _provide_tuning(context, path, partial(_write_tuning, _tuning_key(path)))

    def count(kernel_name: str, source: str) -> None:
        match = _NAME.search(source)
        name = kernel_name if match is None else match[1]  # a user's function has another name
        if name == _CANDIDATE_NAME:  # of a benchmark, and no kernel of the graph
            return
        session.emit(KernelUsed(**stamp(), compiled=None, type="triton", name=name))
        # A kernel from a graph's bundle still has the compile id of another process.
        tuner = getattr(async_compile.CompiledTritonKernels.get(source), "static_autotuner", None)
        if tuner is not None:
            tuner.compile_id = CompileContext.current_compile_id()

    def triton(
        original: Any, self: Any, kernel_name: str, source_code: str, *args: Any, **kwargs: Any
    ) -> Any:
        session.attempt(_RESTORING, partial(restore_tuning, source_code))
        session.attempt("counting a kernel", partial(count, kernel_name, source_code))
        return original(self, kernel_name, source_code, *args, **kwargs)

    patches.hook(async_compile.AsyncCompile, "triton", triton)


def _tuning_key(path: str) -> str:
    """Return torch's key for a file of its autotune cache: the last two parts of the path."""
    return "/".join(path.split(os.sep)[-2:])


def _provide_tuning(context: Context, path: str, write: Callable[[bytes], Any]) -> None:
    """Write the stored configuration for `path`, unless the file exists.

    torch joins the key to its cache folder unchecked, so nbcache rejects keys in other forms than torch's.
    """
    key = _tuning_key(path)
    if AUTOTUNE_KEY.fullmatch(key) and context.serving() and not os.path.exists(path):
        for artifact in context.session.find("autotune", key)[:1]:
            write_for_torch(context.session, "autotune", key, partial(write, artifact.content))


def _write_tuning(key: str, content: bytes) -> None:
    from torch.compiler._cache import CacheArtifactFactory

    CacheArtifactFactory.create("autotune", key, content).populate_cache()
