/* Changing the size of files. */
#include "recorder.h"

int ftruncate(int fd, off_t size) {
    uint64_t object = recording() ? object_of(fd) : 0;
    if (!object) return syscall(SYS_ftruncate, fd, size);
    enter();
    int broken = breaks_fd(F_TRUNCATE, fd);
    int result = broken ? -1 : syscall(SYS_ftruncate, fd, size), saved = broken ? fault->error : errno;
    if (!result) append(OP_TRUNCATE, 0, object, size, 0, NULL);
    leave();
    errno = saved;
    return result;
}
int ftruncate64(int fd, off_t size) { return ftruncate(fd, size); }

int truncate(const char *path, off_t size) {
    int fd = do_open(AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0);
    if (fd < 0) return -1;
    int result = ftruncate(fd, size), saved = errno;
    syscall(SYS_close, fd);
    errno = saved;
    return result;
}
int truncate64(const char *path, off_t size) { return truncate(path, size); }

int fallocate(int fd, int mode, off_t offset, off_t size) {
    uint64_t object = recording() ? object_of(fd) : 0;
    if (!object) return syscall(SYS_fallocate, fd, mode, offset, size);
    struct stat before = {0}, after = {0};
    enter();
    fstat(fd, &before);
    int broken = breaks_fd(F_ALLOCATE, fd);
    int result = broken ? -1 : syscall(SYS_fallocate, fd, mode, offset, size);
    int saved = broken ? fault->error : errno;
    fstat(fd, &after);
    if (!result && after.st_size != before.st_size) append(OP_TRUNCATE, 0, object, after.st_size, 0, NULL);
    if (!result && (mode & ~FALLOC_FL_KEEP_SIZE))
        append_moved(fd, object, offset, offset + size > after.st_size ? after.st_size - offset : size);
    leave();
    errno = saved;
    return result;
}
int fallocate64(int fd, int mode, off_t offset, off_t size) { return fallocate(fd, mode, offset, size); }
int posix_fallocate(int fd, off_t offset, off_t size) {
    int before = errno, result = fallocate(fd, 0, offset, size) ? errno : 0;
    errno = before;
    return result;
}
int posix_fallocate64(int fd, off_t offset, off_t size) { return posix_fallocate(fd, offset, size); }
