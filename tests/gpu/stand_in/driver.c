/* The CUDA driver, as far as Triton and Inductor's launcher call it. A kernel's time depends on its machine code. */
#include "card.h"

#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char context;

int cudaStreamIsCapturing(void *stream, int *status);

CUresult cuInit(unsigned flags) { return card_count() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE; }

CUresult cuDriverGetVersion(int *version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
  *count = card_count();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int index) {
  *device = index;
  return index < card_count() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
  snprintf(name, length, "%s", card_name(device));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
  memset(uuid, 64 + device, sizeof *uuid);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  *value = card_attribute((int)attribute);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *made, CUdevice device) {
  *made = (CUcontext)&context;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
  if (flags) *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *found) {
  *found = (CUcontext)&context;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext chosen) { return CUDA_SUCCESS; }

CUresult cuCtxGetDevice(CUdevice *device) {
  *device = card_current();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit) {
  *value = 0;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) { return CUDA_SUCCESS; }

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
  int found = 0;
  int result = cudaStreamIsCapturing(stream, &found);
  *status = (CUstreamCaptureStatus)found;
  return result;
}

CUresult cuGetErrorString(CUresult error, const char **text) {
  static __thread char buffer[48];
  snprintf(buffer, sizeof buffer, "driver error %d of the stand-in", error);
  *text = buffer;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **text) { return cuGetErrorString(error, text); }

/* --- modules ----------------------------------------------------------------------------------- */

static uint64_t field(const unsigned char *image, int offset, int bytes) {
  uint64_t value = 0;
  memcpy(&value, image + offset, bytes);
  return value;
}

/* The length of an ELF file, by the end of its tables; of PTX, a text. 0 for what is neither. */
static size_t length_of(const unsigned char *image) {
  if (!memcmp(image, "\177ELF", 4)) {
    size_t programs = field(image, 32, 8) + field(image, 54, 2) * field(image, 56, 2);
    size_t sections = field(image, 40, 8) + field(image, 58, 2) * field(image, 60, 2);
    return programs > sections ? programs : sections;
  }
  return strstr((const char *)image, ".version") ? strlen((const char *)image) : 0;
}

/* A module and its functions are the hash of its bytes: FNV-1a. STAND_IN_LOG names a file to list them in. */
CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  size_t length = length_of(image);
  if (!length) return CUDA_ERROR_INVALID_IMAGE;
  uint64_t hash = 1469598103934665603ull;
  for (size_t i = 0; i < length; i++) hash = (hash ^ ((const unsigned char *)image)[i]) * 1099511628211ull;
  *module = (CUmodule)(uintptr_t)hash;
  const char *path = getenv("STAND_IN_LOG");
  FILE *log = path ? fopen(path, "a") : NULL;
  if (log) {
    fprintf(log, "%016llx %zu\n", (unsigned long long)hash, length);
    fclose(log);
  }
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned n, CUjit_option *options, void **values) {
  return cuModuleLoadData(module, image);
}

CUresult cuModuleLoad(CUmodule *module, const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  fseek(file, 0, SEEK_END);
  size_t length = (size_t)ftell(file);
  rewind(file);
  char *image = calloc(1, length + 64);
  CUresult result = fread(image, 1, length, file) == length ? cuModuleLoadData(module, image) : CUDA_ERROR_UNKNOWN;
  free(image);
  fclose(file);
  return result;
}

CUresult cuModuleUnload(CUmodule module) { return CUDA_SUCCESS; }

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  *function = (CUfunction)module;
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
  *value = attribute == CU_FUNC_ATTRIBUTE_NUM_REGS                ? 32
           : attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
                                                                  : 0;
  return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) { return CUDA_SUCCESS; }

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) { return CUDA_SUCCESS; }

/* --- launches ---------------------------------------------------------------------------------- */

static CUresult launched(CUfunction function) {
  card_work(0.02 + 0.0001 * (double)((uintptr_t)function % 1000));
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream stream, void **arguments, void **extra) {
  return launched(f);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                   unsigned bz, unsigned shared, CUstream stream, void **arguments) {
  return launched(f);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **arguments, void **extra) {
  return launched(f);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction f, int threads, size_t shared) {
  *blocks = 2;
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction f, const CUlaunchConfig *config) {
  *clusters = 66;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)data = pointer; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned *)data = CU_MEMORYTYPE_DEVICE; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)data = card_current(); break;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *shape, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *element_strides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2,
                                CUtensorMapFloatOOBfill fill) {
  memset(map, 0, sizeof *map);
  return CUDA_SUCCESS;
}

CUresult cuLinkCreate_v2(unsigned n, CUjit_option *options, void **values, CUlinkState *state) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t size, const char *name,
                          unsigned n, CUjit_option *options, void **values) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuLinkComplete(CUlinkState state, void **cubin, size_t *size) { return CUDA_ERROR_NOT_SUPPORTED; }

/* What the runtime gives out for a function that is not here. */
CUresult stand_in_lacks(void) { return CUDA_ERROR_NOT_SUPPORTED; }
