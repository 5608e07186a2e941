/* NVML, the management library: which cards there are, and the driver's version. */
#include "card.h"

#include <stdint.h>
#include <stdio.h>

int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int error) { return "error of the stand-in"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
  *count = (unsigned)cards_of_machine();
  return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  *device = (void *)(uintptr_t)(index + 1);
  return 0;
}

int nvmlDeviceGetName(void *device, char *name, unsigned length) {
  snprintf(name, length, "%s", card_of_machine((int)(uintptr_t)device - 1));
  return 0;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
  snprintf(uuid, length, "GPU-%08d-4040-4040-4040-404040404040", (int)(uintptr_t)device);
  return 0;
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
  snprintf(version, length, "580.0");
  return 0;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
  *version = 13000;
  return 0;
}
