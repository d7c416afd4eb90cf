/* Loaded before the C library: every write that must reach the disk takes half a second. */
#include <unistd.h>

int fsync(int file) {
    (void)file;
    usleep(500000);
    return 0;
}
