/* The start of the recorder: at the first intercepted call of a process, from its environment. */
#include "recorder.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;

void die(const char *message) {
    dprintf(2, "recorder: %s: %s\n", message, strerror(errno));
    abort();
}

static void *mapped(const char *path, size_t size) {
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) die(path);
    void *map = (void *)syscall(SYS_mmap, NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) die(path);
    syscall(SYS_close, fd);
    return map;
}

static void start(void) {
    const char *path = getenv("KBROKER_RECORD_DIR"), *log = getenv("KBROKER_RECORD_LOG");
    const char *shared = getenv("KBROKER_RECORD_CONTROL"), *faults = getenv("KBROKER_RECORD_FAULTS");
    if (!path || !log || !shared) return;
    control = mapped(shared, sizeof *control);
    if (faults) fault = mapped(faults, sizeof *fault);
    watch(path, getenv("KBROKER_RECORD_SKIP"));
    open_log(log);
}

int recording(void) {
    pthread_once(&once, start);
    return log_fd >= 0;
}
