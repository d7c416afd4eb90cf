/* Loaded before the C library: a wall clock that is CLOCK_OFFSET seconds off, and jumps by CLOCK_JUMP after half a second. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t which, struct timespec *now) {
    static double first;
    int result = syscall(SYS_clock_gettime, which, now);
    if (which != CLOCK_REALTIME) return result;
    double seen = now->tv_sec + now->tv_nsec * 1e-9;
    if (!first) first = seen;
    now->tv_sec += getenv("CLOCK_OFFSET") ? atol(getenv("CLOCK_OFFSET")) : 0;
    if (getenv("CLOCK_JUMP") && seen > first + 0.5) now->tv_sec += atol(getenv("CLOCK_JUMP"));
    return result;
}
