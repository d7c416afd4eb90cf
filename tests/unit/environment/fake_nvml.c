/* Stands in for NVIDIA's libnvidia-ml.so.1. What it answers is read from the file that FAKE_NVML names, a line each:
 *   init CODE | driver TEXT | cuda NUMBER | hang 1 | card MAJOR MINOR TOTAL_MB USED_MB MODE EVENTS NAME
 *   process CARD PID MB | link A B STATUS
 * With FAKE_NVML_AGAIN the file is read again whenever the memory is asked for: it may change meanwhile. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct memory { unsigned long long total, free, used; };
struct process { unsigned pid; unsigned long long bytes; unsigned gpu, compute; };
struct card { int major, minor, mode; unsigned long long total, used, events; char name[64]; int processes; struct process process[8]; int link[8]; };

static struct card cards[8];
static int count, status, cuda = 13000, hangs;
static char driver[64] = "580.65.06";

static void read_all(void) {
    char line[256];
    FILE *file = fopen(getenv("FAKE_NVML") ? getenv("FAKE_NVML") : "/nowhere", "r");
    while (file && fgets(line, sizeof line, file)) {
        struct card *c = &cards[count];
        int a, b, s; unsigned pid; unsigned long long mb;
        if (sscanf(line, "init %d", &status) == 1 || sscanf(line, "driver %63s", driver) == 1) continue;
        if (sscanf(line, "cuda %d", &cuda) == 1 || sscanf(line, "hang %d", &hangs) == 1) continue;
        if (sscanf(line, "card %d %d %llu %llu %d %llu %63[^\n]", &c->major, &c->minor, &c->total, &c->used, &c->mode, &c->events, c->name) == 7) count++;
        else if (sscanf(line, "process %d %u %llu", &a, &pid, &mb) == 3)
            cards[a].process[cards[a].processes++] = (struct process){pid, mb << 20, 0xFFFFFFFF, 0xFFFFFFFF};
        else if (sscanf(line, "link %d %d %d", &a, &b, &s) == 3) cards[a].link[b] = cards[b].link[a] = s;
    }
    if (file) fclose(file);
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; read_all(); if (hangs) sleep(600); return status; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 18 ? "Driver/library version mismatch" : code == 9 ? "Driver Not Loaded" : "error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned n) { snprintf(text, n, "%s", driver); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = cuda; return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = count; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, struct card **c) { *c = &cards[i]; return 0; }
int nvmlDeviceGetName(struct card *c, char *text, unsigned n) { snprintf(text, n, "%s", c->name); return 0; }
int nvmlDeviceGetUUID(struct card *c, char *text, unsigned n) { snprintf(text, n, "GPU-%08x-0000", (unsigned)(c - cards) + 0xabc0); return 0; }
int nvmlDeviceGetMemoryInfo(struct card *c, struct memory *m) {
    if (getenv("FAKE_NVML_AGAIN")) { memset(cards, 0, sizeof cards); count = 0; read_all(); }
    *m = (struct memory){c->total << 20, (c->total - c->used) << 20, c->used << 20};
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(struct card *c, int *major, int *minor) { *major = c->major; *minor = c->minor; return 0; }
int nvmlDeviceGetComputeMode(struct card *c, int *mode) { *mode = c->mode; return 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(struct card *c, unsigned long long *events) { *events = c->events; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(struct card *c, unsigned *n, struct process *all) {
    unsigned room = *n;
    *n = c->processes;
    if (!c->processes) return 0;
    if (room < (unsigned)c->processes) return 7; /* too small */
    memcpy(all, c->process, sizeof *all * c->processes);
    return 0;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(struct card *c, unsigned *n, struct process *all) { (void)c; (void)all; *n = 0; return 0; }
int nvmlDeviceGetP2PStatus(struct card *a, struct card *b, int kind, int *status_of) { (void)kind; *status_of = a->link[b - cards]; return 0; }
