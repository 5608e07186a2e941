/* The CUDA runtime: memory is the host's, and a kernel that is launched takes simulated time and does nothing. */
#define _GNU_SOURCE
#include "card.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CARD_BYTES (141ull << 30)
#define LAUNCH_MILLISECONDS 0.004

static __thread cudaError_t last_error;

static cudaError_t failed(cudaError_t error) { return last_error = error; }

/* --- memory ------------------------------------------------------------------------------------ */

typedef struct range {
  char *begin;
  size_t size;
  int device;
  enum cudaMemoryType type;
  struct range *next;
} range;

static range *ranges;
static double clock_milliseconds;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static cudaError_t allocate(void **pointer, size_t bytes, enum cudaMemoryType type) {
  size_t size = ((bytes ? bytes : 1) + 4095) & ~(size_t)4095;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void *memory = size > CARD_BYTES ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (memory == MAP_FAILED) return failed(cudaErrorMemoryAllocation);
  range *made = malloc(sizeof *made);
  pthread_mutex_lock(&lock);
  *made = (range){memory, size, card_current(), type, ranges};
  ranges = made;
  pthread_mutex_unlock(&lock);
  *pointer = memory;
  return cudaSuccess;
}

static cudaError_t release(void *pointer) {
  pthread_mutex_lock(&lock);
  for (range **each = &ranges; *each; each = &(*each)->next)
    if ((*each)->begin == pointer) {
      range *found = *each;
      *each = found->next;
      munmap(found->begin, found->size);
      free(found);
      break;
    }
  pthread_mutex_unlock(&lock);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void **p, size_t n) { return allocate(p, n, cudaMemoryTypeDevice); }
cudaError_t cudaMallocAsync(void **p, size_t n, cudaStream_t s) { return allocate(p, n, cudaMemoryTypeDevice); }
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned flags) { return allocate(p, n, cudaMemoryTypeHost); }
cudaError_t cudaFree(void *p) { return release(p); }
cudaError_t cudaFreeAsync(void *p, cudaStream_t s) { return release(p); }
cudaError_t cudaFreeHost(void *p) { return release(p); }

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *found, const void *pointer) {
  *found = (struct cudaPointerAttributes){.type = cudaMemoryTypeUnregistered, .device = -2};
  pthread_mutex_lock(&lock);
  for (range *each = ranges; each; each = each->next)
    if ((const char *)pointer >= each->begin && (const char *)pointer < each->begin + each->size) {
      found->type = each->type;
      found->device = each->device;
      found->hostPointer = found->devicePointer = (void *)pointer;
    }
  pthread_mutex_unlock(&lock);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind kind) {
  memmove(to, from, n);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s) {
  return cudaMemcpy(to, from, n, kind);
}

cudaError_t cudaMemcpyPeerAsync(void *to, int a, const void *from, int b, size_t n, cudaStream_t s) {
  return cudaMemcpy(to, from, n, cudaMemcpyDefault);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t s) {
  for (size_t row = 0; row < height; row++)
    memmove((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
  return cudaSuccess;
}

cudaError_t cudaMemset(void *p, int value, size_t n) {
  memset(p, value, n);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t s) { return cudaMemset(p, value, n); }

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
  *available = *total = CARD_BYTES;
  return cudaSuccess;
}

cudaError_t cudaGetSymbolAddress(void **address, const void *symbol) {
  static char somewhere[1 << 16];
  *address = somewhere;
  return cudaSuccess;
}

/* --- the card ---------------------------------------------------------------------------------- */

cudaError_t cudaGetDeviceCount(int *count) {
  *count = card_count();
  return *count ? cudaSuccess : failed(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int *device) {
  *device = card_current();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  return card_choose(device) ? cudaSuccess : failed(cudaErrorInvalidDevice);
}

cudaError_t cudaRuntimeGetVersion(int *version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) { return cudaRuntimeGetVersion(version); }

cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int device) {
  snprintf(id, length, "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int a, int b) {
  *can = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  *value = card_attribute(attribute);
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *found, int device) {
  memset(found, 0, sizeof *found);
  snprintf(found->name, sizeof found->name, "%s", card_name(device));
  memset(&found->uuid, 64 + device, sizeof found->uuid);
  found->totalGlobalMem = CARD_BYTES;
  found->major = card_attribute(cudaDevAttrComputeCapabilityMajor);
  found->minor = card_attribute(cudaDevAttrComputeCapabilityMinor);
  found->multiProcessorCount = card_attribute(cudaDevAttrMultiProcessorCount);
  found->warpSize = card_attribute(cudaDevAttrWarpSize);
  found->maxThreadsPerBlock = card_attribute(cudaDevAttrMaxThreadsPerBlock);
  found->maxThreadsDim[0] = found->maxThreadsDim[1] = 1024;
  found->maxThreadsDim[2] = 64;
  found->maxGridSize[0] = card_attribute(cudaDevAttrMaxGridDimX);
  found->maxGridSize[1] = found->maxGridSize[2] = card_attribute(cudaDevAttrMaxGridDimY);
  found->maxThreadsPerMultiProcessor = card_attribute(cudaDevAttrMaxThreadsPerMultiProcessor);
  found->maxBlocksPerMultiProcessor = card_attribute(cudaDevAttrMaxBlocksPerMultiprocessor);
  found->regsPerBlock = card_attribute(cudaDevAttrMaxRegistersPerBlock);
  found->regsPerMultiprocessor = card_attribute(cudaDevAttrMaxRegistersPerMultiprocessor);
  found->sharedMemPerBlock = card_attribute(cudaDevAttrMaxSharedMemoryPerBlock);
  found->sharedMemPerBlockOptin = card_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  found->sharedMemPerMultiprocessor = card_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  found->l2CacheSize = card_attribute(cudaDevAttrL2CacheSize);
  found->memoryBusWidth = card_attribute(cudaDevAttrGlobalMemoryBusWidth);
  found->totalConstMem = 65536;
  found->memPitch = 2147483647;
  found->textureAlignment = 512;
  found->pciBusID = device + 1;
  found->asyncEngineCount = 3;
  found->concurrentKernels = found->unifiedAddressing = found->managedMemory = found->canMapHostMemory = 1;
  found->streamPrioritiesSupported = found->cooperativeLaunch = found->clusterLaunch = 1;
  return cudaSuccess;
}

/* --- errors ------------------------------------------------------------------------------------ */

cudaError_t cudaPeekAtLastError(void) { return last_error; }

cudaError_t cudaGetLastError(void) {
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

const char *cudaGetErrorName(cudaError_t error) {
  static __thread char text[48];
  snprintf(text, sizeof text, "CUDA error %d of the stand-in", error);
  return text;
}

const char *cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

/* --- kernels ----------------------------------------------------------------------------------- */

void card_work(double milliseconds) {
  pthread_mutex_lock(&lock);
  clock_milliseconds += milliseconds;
  pthread_mutex_unlock(&lock);
}

static cudaError_t launched(void) {
  card_work(LAUNCH_MILLISECONDS);
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void *f, dim3 g, dim3 b, void **a, size_t n, cudaStream_t s) {
  return launched();
}

cudaError_t __cudaLaunchKernel(cudaKernel_t f, dim3 g, dim3 b, void **a, size_t n, cudaStream_t s) {
  return launched();
}

cudaError_t cudaLaunchCooperativeKernel(const void *f, dim3 g, dim3 b, void **a, size_t n, cudaStream_t s) {
  return launched();
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *f, void **a) { return launched(); }

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *entry) {
  *kernel = (cudaKernel_t)entry;
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *found, const void *f) {
  *found = (struct cudaFuncAttributes){
      .maxThreadsPerBlock = 1024, .numRegs = 32, .binaryVersion = 90, .ptxVersion = 90,
      .maxDynamicSharedSizeBytes = 49152};
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *f, int threads, size_t n) {
  *blocks = 2;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *f, int threads,
                                                                   size_t n, unsigned flags) {
  *blocks = 2;
  return cudaSuccess;
}

/* What `kernel<<<…>>>` is compiled to: the configuration is put down, and taken by the stub of the kernel. */
static __thread struct {
  dim3 grid, block;
  size_t shared;
  void *stream;
} configurations[8];
static __thread int depth;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream) {
  if (depth >= 8) abort();
  configurations[depth].grid = grid;
  configurations[depth].block = block;
  configurations[depth].shared = shared;
  configurations[depth++].stream = stream;
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  if (depth <= 0) abort();
  *grid = configurations[--depth].grid;
  *block = configurations[depth].block;
  *shared = configurations[depth].shared;
  *(void **)stream = configurations[depth].stream;
  return cudaSuccess;
}

void **__cudaRegisterFatBinary(void *binary) {
  static void *handle[4];
  return handle;
}

char __cudaInitModule(void **handle) { return 1; }

/* --- streams, graphs and events ---------------------------------------------------------------- */

typedef struct {
  int captures, priority;
  unsigned long long id;
} stream;

static stream default_stream;
static unsigned long long captures;

static stream *stream_of(cudaStream_t given) {
  return (uintptr_t)given < 4096 ? &default_stream : (stream *)given; /* legacy and per-thread ones are numbers */
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *made, unsigned flags, int priority) {
  stream *new = calloc(1, sizeof *new);
  new->priority = priority;
  *made = (cudaStream_t)new;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *made, unsigned flags) {
  return cudaStreamCreateWithPriority(made, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *made) { return cudaStreamCreateWithPriority(made, 0, 0); }

cudaError_t cudaStreamGetPriority(cudaStream_t s, int *priority) {
  *priority = stream_of(s)->priority;
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode) {
  stream_of(s)->captures = 1;
  stream_of(s)->id = ++captures;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph) {
  stream_of(s)->captures = 0;
  *graph = malloc(8);
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status) {
  *status = stream_of(s)->captures ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph, const cudaGraphNode_t **nodes,
                                     const cudaGraphEdgeData **edges, size_t *count) {
  if (id) *id = stream_of(s)->id;
  if (graph) *graph = NULL;
  if (nodes) *nodes = NULL;
  if (edges) *edges = NULL;
  if (count) *count = 0;
  return cudaStreamIsCapturing(s, status);
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long flags) {
  *made = malloc(8);
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
  *count = 1; /* an empty graph is warned of */
  if (nodes) *nodes = NULL;
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t s) { return launched(); }

cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t function, void *data) {
  function(data);
  return cudaSuccess;
}

cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t function, void *data, unsigned flags) {
  function(s, cudaSuccess, data);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *made, unsigned flags) {
  *made = calloc(1, sizeof(double));
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *made) { return cudaEventCreateWithFlags(made, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  free(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t s) {
  pthread_mutex_lock(&lock);
  *(double *)event = clock_milliseconds;
  pthread_mutex_unlock(&lock);
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t s, unsigned flags) {
  return cudaEventRecord(event, s);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  double elapsed = *(double *)end - *(double *)begin;
  *milliseconds = elapsed < 0.001 ? 0.001f : (float)elapsed;
  return cudaSuccess;
}

/* --- others ------------------------------------------------------------------------------------ */

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result) {
  void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
  *function = driver ? dlsym(driver, name) : NULL;
  if (driver && !*function) *function = dlsym(driver, "stand_in_lacks");
  if (result) *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return *function ? cudaSuccess : cudaErrorSymbolNotFound;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
  static char made;
  *pool = (cudaMemPool_t)&made;
  return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
  *(unsigned long long *)value = 0;
  return cudaSuccess;
}
