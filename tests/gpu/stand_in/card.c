#include "card.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef char name[96];

static name all[CARDS_MOST], visible[CARDS_MOST];
static int all_count, visible_count;
static pthread_once_t found = PTHREAD_ONCE_INIT, chosen = PTHREAD_ONCE_INIT;
static __thread int current;

/* STAND_IN_CARDS names the cards, separated by commas. */
static void find_cards(void) {
  const char *given = getenv("STAND_IN_CARDS");
  char *names = strdup(given ? given : "NVIDIA H200 (stand-in)"), *rest = names, *each;
  while ((each = strsep(&rest, ",")) && all_count < CARDS_MOST)
    if (*each) snprintf(all[all_count++], sizeof(name), "%s", each);
  free(names);
}

/* CUDA looks at its variable once; the management library does not. */
static void choose_cards(void) {
  pthread_once(&found, find_cards);
  const char *given = getenv("CUDA_VISIBLE_DEVICES");
  if (!given) {
    memcpy(visible, all, sizeof all);
    visible_count = all_count;
    return;
  }
  char *indices = strdup(given), *rest = indices, *each;
  while ((each = strsep(&rest, ",")) && *each && visible_count < CARDS_MOST) {
    int index = atoi(each);
    if (index < 0 || index >= all_count) break;
    memcpy(visible[visible_count++], all[index], sizeof(name));
  }
  free(indices);
}

int card_count(void) {
  pthread_once(&chosen, choose_cards);
  return visible_count;
}

int cards_of_machine(void) {
  pthread_once(&found, find_cards);
  return all_count;
}

const char *card_name(int device) {
  return device < card_count() ? visible[device] : "";
}

const char *card_of_machine(int index) {
  return index < cards_of_machine() ? all[index] : "";
}

int card_current(void) { return current; }

int card_choose(int device) {
  if (device < 0 || device >= card_count()) return 0;
  current = device;
  return 1;
}

/* Those of an H200, but for STAND_IN_CAPABILITY, which is 90 unless given. */
int card_attribute(int attribute) {
  const char *given = getenv("STAND_IN_CAPABILITY");
  int capability = given ? atoi(given) : 90;
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: return capability / 10;
    case cudaDevAttrComputeCapabilityMinor: return capability % 10;
    case cudaDevAttrMultiProcessorCount: return 132;
    case cudaDevAttrWarpSize: return 32;
    case cudaDevAttrMaxThreadsPerBlock: return 1024;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return 2048;
    case cudaDevAttrMaxBlocksPerMultiprocessor: return 32;
    case cudaDevAttrMaxRegistersPerBlock: return 65536;
    case cudaDevAttrMaxRegistersPerMultiprocessor: return 65536;
    case cudaDevAttrMaxSharedMemoryPerBlock: return 49152;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return 232448;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return 233472;
    case cudaDevAttrMaxGridDimX: return 2147483647;
    case cudaDevAttrMaxGridDimY: return 65535;
    case cudaDevAttrMaxGridDimZ: return 65535;
    case cudaDevAttrL2CacheSize: return 62914560;
    case cudaDevAttrClockRate: return 1980000;
    case cudaDevAttrMemoryClockRate: return 3201000;
    case cudaDevAttrGlobalMemoryBusWidth: return 6144;
    case cudaDevAttrUnifiedAddressing: return 1;
    case cudaDevAttrManagedMemory: return 1;
    case cudaDevAttrCooperativeLaunch: return 1;
  }
  return 0;
}
