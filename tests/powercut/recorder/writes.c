/* Writing: the bytes of the process, and bytes that the kernel moves. */
#include "recorder.h"

#include <sys/sendfile.h>

static ssize_t real_write(int fd, const struct iovec *data, int parts, off_t offset, int flags) {
    if (offset < 0) return syscall(SYS_writev, fd, data, parts);
    if (flags) return syscall(SYS_pwritev2, fd, data, parts, offset, 0L, flags);
    return syscall(SYS_pwritev, fd, data, parts, offset, 0L);
}

static ssize_t broken_write(int fd, const struct iovec *data, off_t offset) {
    size_t keep = (size_t)fault->keep_bytes < data[0].iov_len ? (size_t)fault->keep_bytes : data[0].iov_len;
    struct iovec part = {data[0].iov_base, keep};
    return keep ? real_write(fd, &part, 1, offset, 0) : 0;
}

/* A mark. kill -9 in the middle of it would leave half a record. */
static ssize_t write_mark(int fd, const struct iovec *data, int parts, off_t offset, int flags) {
    enter();
    ssize_t written = real_write(fd, data, parts, offset, flags);
    int saved = errno;
    leave();
    errno = saved;
    return written;
}

static ssize_t do_write(int fd, const struct iovec *data, int parts, off_t offset, int flags) {
    if (!recording()) return real_write(fd, data, parts, offset, flags);
    if (is_log(fd)) return write_mark(fd, data, parts, offset, flags);
    uint64_t object = object_of(fd);
    if (!object) return real_write(fd, data, parts, offset, flags);
    enter();
    int broken = breaks_fd(F_WRITE, fd);
    ssize_t written = broken ? broken_write(fd, data, offset) : real_write(fd, data, parts, offset, flags);
    int saved = errno;
    if (written > 0) {
        off_t place = offset >= 0 ? offset : lseek(fd, 0, SEEK_CUR) - written;
        int synced = (fcntl(fd, F_GETFL) & O_DSYNC) || (flags & (RWF_DSYNC | RWF_SYNC));
        append_write(synced ? FLAG_DSYNC : 0, object, place, data, parts, written);
    }
    leave();
    if (broken && fault->error) {
        errno = fault->error;
        return -1;
    }
    errno = saved;
    return written;
}

ssize_t write(int fd, const void *data, size_t size) {
    struct iovec part = {(void *)data, size};
    return do_write(fd, &part, 1, -1, 0);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    struct iovec part = {(void *)data, size};
    return do_write(fd, &part, 1, offset, 0);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset) {
    return pwrite(fd, data, size, offset);
}
ssize_t writev(int fd, const struct iovec *data, int parts) { return do_write(fd, data, parts, -1, 0); }
ssize_t pwritev(int fd, const struct iovec *data, int parts, off_t offset) {
    return do_write(fd, data, parts, offset, 0);
}
ssize_t pwritev64(int fd, const struct iovec *data, int parts, off_t offset) {
    return do_write(fd, data, parts, offset, 0);
}
ssize_t pwritev2(int fd, const struct iovec *data, int parts, off_t offset, int flags) {
    return do_write(fd, data, parts, offset, flags);
}
ssize_t pwritev64v2(int fd, const struct iovec *data, int parts, off_t offset, int flags) {
    return do_write(fd, data, parts, offset, flags);
}

ssize_t copy_file_range(int from, off64_t *from_offset, int to, off64_t *to_offset, size_t size,
                        unsigned flags) {
    uint64_t object = recording() ? object_of(to) : 0;
    if (!object) return syscall(SYS_copy_file_range, from, from_offset, to, to_offset, size, flags);
    enter();
    ssize_t moved = syscall(SYS_copy_file_range, from, from_offset, to, to_offset, size, flags);
    int saved = errno;
    if (moved > 0) append_moved(to, object, (to_offset ? *to_offset : lseek(to, 0, SEEK_CUR)) - moved, moved);
    leave();
    errno = saved;
    return moved;
}

ssize_t sendfile(int to, int from, off_t *offset, size_t size) {
    uint64_t object = recording() ? object_of(to) : 0;
    if (!object) return syscall(SYS_sendfile, to, from, offset, size);
    enter();
    ssize_t moved = syscall(SYS_sendfile, to, from, offset, size);
    int saved = errno;
    if (moved > 0) append_moved(to, object, lseek(to, 0, SEEK_CUR) - moved, moved);
    leave();
    errno = saved;
    return moved;
}
ssize_t sendfile64(int to, int from, off_t *offset, size_t size) { return sendfile(to, from, offset, size); }
