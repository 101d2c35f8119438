/* A fake libnvidia-ml.so.1: one GPU whose counters are made up. Calls and structs are NVML's. */
#include <string.h>
#include <unistd.h>

typedef struct { unsigned id, code; double value; char *names[3]; } metric;
typedef struct { unsigned version, count; int *one, *other; metric metrics[98]; } metrics;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process;

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory;
typedef struct { char old[16]; unsigned domain, bus, device, id, sub; char bus_id[32]; } pci;
typedef struct { unsigned pid; unsigned long long at; unsigned sm, mem, enc, dec; } sample;
typedef struct { void *device; unsigned long long type, data; unsigned gi, ci; } event;

typedef struct {
  unsigned field, scope; long long at, took; int type, code;
  union { double d; unsigned u; unsigned long long ull; } value;
} field;

static int card, taken;
const char *nvmlErrorString(int code) { return code == 3 ? "Not Supported" : "Invalid Argument"; }
int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { return flags; }
int nvmlShutdown(void) { return 0; }
static int told(char *to, unsigned room, const char *what) { strncpy(to, what, room); return 0; }
int nvmlSystemGetDriverVersion(char *to, unsigned room) { return told(to, room, "580.1"); }
int nvmlDeviceGetHandleByIndex_v2(unsigned at, void **to) { *to = &card; return at ? 2 : 0; }
int nvmlDeviceGetHandleByUUID(char *uuid, void **to) { *to = &card; return strcmp(uuid, "GPU-1") ? 2 : 0; }
int nvmlDeviceGetName(void *of, char *to, unsigned room) { return of == &card ? told(to, room, "NVIDIA H100 80GB HBM3") : 2; }
int nvmlDeviceGetUUID(void *of, char *to, unsigned room) { return of == &card ? told(to, room, "GPU-1") : 2; }
int nvmlDeviceGetMemoryInfo(void *of, unsigned long long *to) {
  to[0] = 81559ull << 20; to[1] = 80559ull << 20; to[2] = 1000ull << 20; return of != &card;
}
int nvmlDeviceGetUtilizationRates(void *of, unsigned *to) { to[0] = 87; to[1] = 12; return of != &card; }
int nvmlDeviceGetPowerUsage(void *of, unsigned *to) { *to = 350000; return of != &card; }
int nvmlDeviceGetClockInfo(void *of, unsigned which, unsigned *to) { *to = which == 1 ? 1980 : 2619; return of != &card; }
int nvmlDeviceGetTemperature(void *of, unsigned which, unsigned *to) { return 3; }
int nvmlDeviceGetComputeMode(void *of, unsigned *to) { *to = 0; return of != &card; }
int nvmlDeviceGetMigMode(void *of, unsigned *now, unsigned *later) { *now = *later = 0; return of != &card; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *of, unsigned *count, process *to) {
  process found[2] = {{7, 3ull << 30, 0, 0}, {8, ~0ull, 0, 0}};
  if (*count < 2) { *count = 2; return 7; }
  memcpy(to, found, sizeof found); *count = 2; return of != &card;
}
int nvmlGpmQueryDeviceSupport(void *of, unsigned *to) { if (to[0] != 1) return 2; to[1] = 1; return of != &card; }
int nvmlGpmSampleAlloc(int **to) { static int samples[9], used; *to = &samples[used++]; return 0; }
int nvmlGpmSampleGet(void *of, int *to) { *to = ++taken; return of != &card; }
int nvmlGpmSampleFree(int *of) { *of = 0; return 0; }
int nvmlGpmMetricsGet(metrics *of) {
  if (of->version != 1 || *of->other != *of->one + 1) return 2;
  for (unsigned at = 0; at < of->count; at++) {
    of->metrics[at].code = of->metrics[at].id == 3 ? 3 : 0;
    of->metrics[at].value = of->metrics[at].id + 20.0;
  }
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned *to) { *to = 1; return 0; }
int nvmlDeviceGetMinorNumber(void *of, unsigned *to) { *to = 3; return of != &card; }
int nvmlDeviceGetPciInfo_v3(void *of, pci *to) { strcpy(to->bus_id, "00000000:65:00.0"); return of != &card; }
int nvmlDeviceGetMemoryInfo_v2(void *of, memory *to) {
  if (to->version != (2u << 24 | sizeof(memory))) return 2;
  to->total = 81559ull << 20; to->reserved = 600ull << 20; to->free = 79959ull << 20; to->used = 1000ull << 20;
  return of != &card;
}
int nvmlDeviceGetProcessUtilization(void *of, sample *to, unsigned *count, unsigned long long since) {
  if (since >= 500) return 6;
  if (!to) { *count = 1; return 7; }
  sample found = {7, 500, 40, 1, 0, 0}; *to = found; *count = 1; return of != &card;
}
int nvmlDeviceGetFieldValues(void *of, int count, field *to) {
  to->code = to->field == 230 ? 0 : 3; to->type = 1; to->value.u = 0; return of != &card || count != 1;
}
int nvmlEventSetCreate(void **to) { static int set; *to = &set; return 0; }
int nvmlEventSetFree(void *set) { return 0; }
int nvmlDeviceGetSupportedEventTypes(void *of, unsigned long long *to) { *to = 8; return of != &card; }
int nvmlDeviceRegisterEvents(void *of, unsigned long long types, void *set) { return of != &card || types != 8; }
int nvmlEventSetWait_v2(void *set, event *to, unsigned timeout) {
  static int told;
  event found = {&card, 8, 79, ~0u, ~0u};
  if (told++) { usleep(20000); return 10; }
  *to = found; return 0;
}
