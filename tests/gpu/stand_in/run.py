"""Run a command with a stand-in for an NVIDIA GPU: `python tests/gpu/stand_in/run.py COMMAND …`.

For machines without a card. This interpreter must have torch's build for CUDA. Everything that compiles,
tunes and caches is real: Dynamo, Inductor, Triton, ptxas; machine code is loaded, launched and timed. The
card is not: its memory is the host's, its clock is simulated, and a kernel computes nothing, so results mean
nothing. Convolutions need cuDNN, for which nothing stands in; attention does without it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SITE = Path(next(iter(importlib.util.find_spec("torch").submodule_search_locations or ()))).parent
INCLUDE = [f"-I{SITE / part}" for part in ("nvidia/cu13/include", "triton/backends/nvidia/include")]
BLAS = """\
#include "card.h"
#include <stdlib.h>
#include <string.h>

int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d,
                                   void *preference, int most, void *found, int *count) {
  memset(found, 0, 96);
  *count = 1;
  return 0;
}
"""


def main() -> None:
    of = hashlib.sha256(str(SITE).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir(), f"nbcache-stand-in-{os.getuid()}-{of}")
    folder.mkdir(mode=0o700, exist_ok=True)
    build(folder)
    names = ("libcudart.so.13", "libcuda.so.1", "libcublas-stand-in.so")
    environ = {
        **os.environ,
        "LD_PRELOAD": ":".join(str(folder / name) for name in names),
        "LD_LIBRARY_PATH": str(folder),
        "TORCH_CUDNN_SDPA_DEPRIORITIZED": "1",
        "NBCACHE_TEST_PASSED": "LD_PRELOAD,TORCH_CUDNN_SDPA_DEPRIORITIZED",
    }
    os.execvpe(sys.argv[1], sys.argv[1:], environ)


def build(folder: Path) -> None:
    """Compile the libraries into `folder`."""
    needed = undefined_symbols()
    defined = set(re.findall(r"\b(\w+)\(", (HERE / "runtime.c").read_text()))
    rest = [name for name in needed if name.startswith(("cuda", "__cuda")) and name not in defined]
    (folder / "rest.c").write_text("".join(f"int {name}() {{ return 0; }}\n" for name in rest))
    (folder / "blas.c").write_text(BLAS + "".join(map(of_blas, filter(is_of_blas, needed))))
    (folder / "versions").write_text("libcudart.so.13 { global: *; };\n")

    def library(name: str, *sources: Path, options: tuple[str, ...] = ()) -> None:
        made = folder / f"{name}.{os.getpid()}"  # whoever runs the one that is there goes on with it
        command = ["gcc", "-O1", "-w", "-shared", "-fPIC", *INCLUDE, f"-I{HERE}", f"-Wl,-soname,{name}"]
        subprocess.run([*command, "-o", made, *sources, *options, "-ldl", "-lpthread"], check=True)
        made.replace(folder / name)

    symbols = ("-Wl,--version-script", str(folder / "versions"))
    library("libcudart.so.13", HERE / "runtime.c", HERE / "card.c", folder / "rest.c", options=symbols)
    linked = (str(folder / "libcudart.so.13"),)
    library("libcuda.so.1", HERE / "driver.c", options=linked)
    library("libnvidia-ml.so.1", HERE / "management.c", options=linked)
    library("libcublas-stand-in.so", folder / "blas.c", options=linked)


def undefined_symbols() -> list[str]:
    """Return the names that torch's libraries expect others to define."""
    libraries = [*SITE.glob("torch/lib/*.so"), *SITE.glob("torch/_C*.so")]
    listed = subprocess.run(
        ["nm", "-D", "--undefined-only", *libraries], capture_output=True, text=True, check=True
    )
    return sorted(set(re.findall(r"^ +U (\w+)", listed.stdout, re.MULTILINE)))


def is_of_blas(name: str) -> bool:
    return name.startswith("cublas") and name != "cublasLtMatmulAlgoGetHeuristic"


def of_blas(name: str) -> str:
    """Return a function of cuBLAS that makes a handle, tells nothing, or takes time and does nothing."""
    if name == "cublasCreate_v2" or (name.startswith("cublasLt") and name.endswith("Create")):
        return f"int {name}(void **made) {{ *made = calloc(1, 4096); return 0; }}\n"
    if name in ("cublasGetMathMode", "cublasGetPointerMode_v2", "cublasGetVersion_v2"):
        return f"int {name}(void *handle, int *value) {{ *value = 0; return 0; }}\n"
    if "Status" in name:
        return f'const char *{name}(int status) {{ return "of the stand-in"; }}\n'
    return f"int {name}() {{ card_work(0.03); return 0; }}\n"


if __name__ == "__main__":
    main()
