/* The log: a sequence of records, each appended by one write() to a file opened with O_APPEND, so that other
 * processes may append marks between its records:
 *
 *   0        4      6      8          12          16         24       32       40       48       56
 *   +--------+------+------+----------+-----------+----------+--------+--------+--------+--------+
 *   | 'KBRL' | op   | flags| path len | path2 len | data len | object | offset | result | at_ns  |
 *   +--------+------+------+----------+-----------+----------+--------+--------+--------+--------+
 *   | path | path2 | data |
 *   +------+-------+------+
 *
 * All numbers are little endian. `object` is a number for a file's content. A process assigns it when it
 * first sees the file. No process of the recording, at the same time or later, assigns it again.
 */
#include "recorder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct header {
    uint32_t magic;
    uint16_t op, flags;
    uint32_t path_length, path2_length;
    uint64_t data_length, object;
    int64_t offset, result, at_ns;
} __attribute__((packed));

int log_fd = -1;
static struct stat log_status;

void open_log(const char *path) {
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0 || fstat(fd, &log_status)) die(path);
    log_fd = fcntl(fd, F_DUPFD_CLOEXEC, 500); /* out of the way of programs that rely on low numbers */
    if (log_fd < 0) die(path);
    syscall(SYS_close, fd);
}

/* 1 if the process appends marks of its own through this descriptor. */
int is_log(int fd) {
    struct stat status;
    return !fstat(fd, &status) && status.st_ino == log_status.st_ino && status.st_dev == log_status.st_dev;
}

/* All callers of these are in a section. */
static void append_all(struct header header, const char *path, const char *path2, const struct iovec *data,
                       int parts) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    header.magic = 0x4c52424b, header.at_ns = now.tv_sec * 1000000000LL + now.tv_nsec;
    header.path_length = path ? strlen(path) : 0, header.path2_length = path2 ? strlen(path2) : 0;
    size_t length = header.data_length;
    size_t total = sizeof header + header.path_length + header.path2_length + length;
    char *record = malloc(total), *end = record;
    if (!record) die("no memory");
    end = mempcpy(end, &header, sizeof header);
    end = mempcpy(end, path ? path : "", header.path_length);
    end = mempcpy(end, path2 ? path2 : "", header.path2_length);
    for (int part = 0; part < parts && length; part++) {
        size_t size = data[part].iov_len < length ? data[part].iov_len : length;
        end = mempcpy(end, data[part].iov_base, size);
        length -= size;
    }
    if (syscall(SYS_write, log_fd, record, total) != (long)total) die("the log cannot be written");
    free(record);
}

void append(enum op op, int flags, uint64_t object, int64_t offset, int64_t result, const char *path) {
    struct header header = {.op = op, .flags = flags, .object = object, .offset = offset, .result = result};
    append_all(header, path, NULL, NULL, 0);
}

void append_names(enum op op, const char *path, const char *path2) {
    append_all((struct header){.op = op}, path, path2, NULL, 0);
}

/* The first `size` bytes of `data`. */
void append_write(int flags, uint64_t object, int64_t offset, const struct iovec *data, int parts,
                  size_t size) {
    struct header header = {
        .op = OP_WRITE, .flags = flags, .data_length = size, .object = object, .offset = offset};
    append_all(header, NULL, NULL, data, parts);
}

/* Bytes that the kernel moved: read them back from the file. */
void append_moved(int fd, uint64_t object, off_t offset, ssize_t size) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int reader = syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC, 0);
    char *bytes = malloc(size);
    if (reader < 0 || !bytes || pread(reader, bytes, size, offset) != size)
        die("moved bytes cannot be read back");
    struct iovec part = {bytes, size};
    append_write(0, object, offset, &part, 1, size);
    free(bytes);
    syscall(SYS_close, reader);
}
