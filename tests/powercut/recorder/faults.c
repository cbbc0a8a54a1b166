/* Faults that the test injects, and the size of a disk that is full by one of them. */
#include "recorder.h"

#include <string.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>

struct fault *fault;

static int is_armed(void) { return fault && __atomic_load_n(&fault->armed, __ATOMIC_ACQUIRE); }

/* 1 if this call must be broken; the caller is in a section and has changed nothing yet. */
int breaks(enum fault_class class, const char *name) {
    if (!is_armed() || !(fault->classes & class)) return 0;
    if (!name || !strstr(name, fault->path)) return 0;
    if (fault->skip > 0) {
        fault->skip--;
        return 0;
    }
    if (!fault->sticky) __atomic_store_n(&fault->armed, 0, __ATOMIC_RELEASE);
    fault->fired++;
    append(OP_FAULT, 0, 0, class, fault->error, name);
    if (fault->error < 0) end_process(-fault->error);
    return 1;
}

int breaks_fd(enum fault_class class, int fd) {
    char buffer[PATH_MAX];
    return is_armed() && breaks(class, inside_fd(fd, buffer));
}

/* A disk that refuses every write for lack of space also reports that it is full. */
static int says_full(void) { return recording() && is_armed() && fault->sticky && fault->error == ENOSPC; }

static int fill_statvfs(int result, const struct statfs *from, struct statvfs *to) {
    if (result) return result;
    memset(to, 0, sizeof *to);
    to->f_bsize = from->f_bsize, to->f_frsize = from->f_frsize ? from->f_frsize : from->f_bsize;
    to->f_blocks = from->f_blocks, to->f_bfree = from->f_bfree, to->f_bavail = from->f_bavail;
    to->f_files = from->f_files, to->f_ffree = from->f_ffree, to->f_favail = from->f_ffree;
    to->f_namemax = from->f_namelen, to->f_flag = from->f_flags;
    if (says_full()) to->f_bfree = to->f_bavail = 0;
    return 0;
}

int statvfs(const char *path, struct statvfs *status) {
    struct statfs raw;
    return fill_statvfs(syscall(SYS_statfs, path, &raw), &raw, status);
}
int statvfs64(const char *path, struct statvfs64 *status) { return statvfs(path, (struct statvfs *)status); }
int fstatvfs(int fd, struct statvfs *status) {
    struct statfs raw;
    return fill_statvfs(syscall(SYS_fstatfs, fd, &raw), &raw, status);
}
int fstatvfs64(int fd, struct statvfs64 *status) { return fstatvfs(fd, (struct statvfs *)status); }
