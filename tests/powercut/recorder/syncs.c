/* Syncs of files, of directories and of the file system. They run outside of the sections of their two
 * records: a kill in between leaves a sync without an end, which makes nothing safe. */
#include "recorder.h"

static int do_sync(int fd, long number) {
    struct stat status;
    char buffer[PATH_MAX];
    if (!recording() || fstat(fd, &status) || status.st_dev != device) return syscall(number, fd);
    int whole = number == SYS_syncfs, is_directory = S_ISDIR(status.st_mode);
    uint64_t object = whole || is_directory ? 0 : object_of(fd);
    const char *name = is_directory || whole ? inside_fd(fd, buffer) : NULL;
    if (!object && !name && !whole) return syscall(number, fd);
    enum op begin = whole ? OP_ALLSYNC_BEGIN : is_directory ? OP_DIRSYNC_BEGIN : OP_SYNC_BEGIN;
    enter();
    int64_t sync = __atomic_add_fetch(&control->last_sync, 1, __ATOMIC_RELAXED);
    int broken = whole ? breaks(F_SYNC, name) : breaks_fd(F_SYNC, fd);
    if (!is_directory || whole) append_mappings_of(object);
    append(begin, 0, object, sync, 0, whole ? NULL : name);
    leave();
    int result = broken ? -1 : syscall(number, fd), saved = broken ? fault->error : errno;
    enter();
    append(begin + 1, 0, object, sync, result ? saved : 0, whole ? NULL : name);
    leave();
    errno = saved;
    return result;
}

int fsync(int fd) { return do_sync(fd, SYS_fsync); }
int fdatasync(int fd) { return do_sync(fd, SYS_fdatasync); }
int syncfs(int fd) { return do_sync(fd, SYS_syncfs); }
void sync(void) {
    int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
    int fd = recording() ? syscall(SYS_openat, AT_FDCWD, directory, flags, 0) : -1;
    if (fd >= 0) {
        do_sync(fd, SYS_syncfs);
        syscall(SYS_close, fd);
    }
    syscall(SYS_sync);
}
