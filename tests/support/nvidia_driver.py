"""A stand-in for the library of NVIDIA's driver, NVML: what it says is set by environment variables.

It is C, and loaded as the real one is, so that what calls it is tried as it is; only the answers are made up.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["build", "shown_by"]

_SOURCE = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* TEST_GPUS: GPUs apart by ';', the name of each, then of its slices, apart by '/'. */
static int part(const char *text, char separator, unsigned number, char *into) {
    while (number > 0 && (text = strchr(text, separator)) != NULL) { text++; number--; }
    if (text == NULL || *text == '\0') return 0;
    size_t length = strcspn(text, separator == '/' ? "/;" : ";");
    memcpy(into, text, length);
    into[length] = '\0';
    return 1;
}

static int named(uintptr_t handle, char *into) { /* 1 + GPU + 100 * slice; slice 0 is the whole */
    char gpu[1024];
    const char *all = getenv("TEST_GPUS");
    return part(all ? all : "", ';', (handle - 1) % 100, gpu) && part(gpu, '/', (handle - 1) / 100, into);
}

static int answer(const char *name, int otherwise) {
    const char *value = getenv(name);
    return value ? atoi(value) : otherwise;
}

int nvmlInitWithFlags(unsigned flags) { return answer("TEST_NVML_FAILS", 0); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 18 ? "Driver/library version mismatch" : "Unknown"; }
int nvmlDeviceGetCount_v2(unsigned *count) {
    char name[1024];
    for (*count = 0; named(1 + *count, name); ++*count) {}
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned number, void **handle) {
    char name[1024];
    *handle = (void *)(uintptr_t)(1 + number);
    if (!named(1 + number, name)) return 2;
    return strcmp(name, "lost") == 0 ? 15 : 0;
}
int nvmlDeviceGetName(void *handle, char *name, unsigned length) {
    char found[1024];
    if (!named((uintptr_t)handle, found)) return 2;
    snprintf(name, length, "%s", found);
    return 0;
}
int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned length) {
    uintptr_t number = (uintptr_t)handle - 1;
    snprintf(uuid, length, "%s-%04u", number < 100 ? "GPU" : "MIG", (unsigned)number);
    return 0;
}
int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    char name[1024];
    if (!named((uintptr_t)handle + 100, name)) return 3;
    *current = *pending = 1;
    return 0;
}
int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) { *count = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned number, void **slice) {
    char name[1024];
    *slice = (void *)((uintptr_t)handle + 100 * (1 + number));
    return named((uintptr_t)*slice, name) ? 0 : 6;
}
int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    snprintf(version, length, "580.95.05");
    return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = answer("TEST_CUDA", 13000); return 0; }
"""


def build(folder: Path) -> Path:
    """Compile the library into `folder`, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libnvidia-ml.so.1"
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=_SOURCE, text=True, check=True)
    return library


def shown_by(library: Path, *gpus: str, **answers: str) -> dict[str, str]:
    """Return the environment variables with which a process finds these GPUs, by this library.

    A GPU is `NAME`, or `NAME/SLICE/SLICE` for one that is cut into slices.
    """
    return {"LD_LIBRARY_PATH": str(library.parent), "TEST_GPUS": ";".join(gpus), **answers}
