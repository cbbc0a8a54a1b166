/* Opening and creating files. */
#include "recorder.h"

#include <stdarg.h>

int do_open(int dirfd, const char *path, int flags, mode_t mode) {
    char buffer[PATH_MAX];
    const char *name = recording() ? inside(dirfd, path, buffer) : NULL;
    if (!name || !*name || (flags & O_DIRECTORY)) return syscall(SYS_openat, dirfd, path, flags, mode);
    struct stat status;
    enter();
    if ((flags & (O_CREAT | O_TRUNC | O_WRONLY | O_RDWR)) && breaks(F_OPEN, name)) {
        leave();
        errno = fault->error;
        return -1;
    }
    int existed = !fstatat(dirfd, path, &status, 0);
    int fd = syscall(SYS_openat, dirfd, path, flags, mode), saved = errno;
    if (fd >= 0 && !fstat(fd, &status) && S_ISREG(status.st_mode) && status.st_dev == device) {
        uint64_t object = meet(&status, name, !existed);
        if ((flags & O_TRUNC) && existed) append(OP_TRUNCATE, 0, object, 0, 0, NULL);
    }
    leave();
    errno = saved;
    return fd;
}

#define MODE(last) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, last); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }

int open(const char *path, int flags, ...) { MODE(flags) return do_open(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return do_open(AT_FDCWD, path, flags, mode); }
int openat(int dirfd, const char *path, int flags, ...) {
    MODE(flags) return do_open(dirfd, path, flags, mode);
}
int openat64(int dirfd, const char *path, int flags, ...) {
    MODE(flags) return do_open(dirfd, path, flags, mode);
}
int creat(const char *path, mode_t mode) {
    return do_open(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}
int creat64(const char *path, mode_t mode) { return creat(path, mode); }
int __open_2(const char *path, int flags) { return do_open(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return do_open(AT_FDCWD, path, flags, 0); }
int __openat_2(int dirfd, const char *path, int flags) { return do_open(dirfd, path, flags, 0); }
int __openat64_2(int dirfd, const char *path, int flags) { return do_open(dirfd, path, flags, 0); }
