/* A preloaded library that logs all changes of a process to the files below one directory, and injects faults.
 *
 * Environment:
 *   KBROKER_RECORD_DIR    absolute, real path of the directory whose files are recorded
 *   KBROKER_RECORD_LOG    the log (outside of that directory), which is appended to
 *   KBROKER_RECORD_SKIP   suffixes of file names that are ignored, separated by ':'
 *   KBROKER_RECORD_FAULTS a control file (struct fault), optional; the test writes it while the process runs
 *
 * The log is a sequence of records, each appended by one write() to a file opened with O_APPEND, so that it survives kill -9 of
 * the process, and other processes may append marks between its records:
 *
 *   0        4      6      8          12          16         24       32       40       48       56
 *   +--------+------+------+----------+-----------+----------+--------+--------+--------+--------+------+-------+------+
 *   | 'KBRL' | op   | flags| path len | path2 len | data len | object | offset | result | at_ns  | path | path2 | data |
 *   +--------+------+------+----------+-----------+----------+--------+--------+--------+--------+------+-------+------+
 *   little endian; `object` is a number for a file's content, assigned when the file is first seen and never reused.
 *
 * Order: an operation that changes something is done and logged under one mutex, before the caller learns of it. A sync is
 * logged twice, before and after, and runs outside of the mutex: changes logged before its begin are durable at its end. The
 * order of the log is therefore one that callers can rely on.
 *
 * Files are identified by device and inode, looked up at every call, so that duplicated, inherited and internally closed
 * descriptors need no bookkeeping. The real operations are made as raw system calls: no function of libc is intercepted twice.
 * What cannot be recorded faithfully (a symbolic link, names that change places) is logged as UNSUPPORTED, and replay refuses it.
 * Not recorded: stdio's own writes and direct system calls; the tests compare the bytes of a replay with those on the disk.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum op {
    OP_OPEN = 1, OP_WRITE, OP_TRUNCATE, OP_SYNC_BEGIN, OP_SYNC_END, OP_DIRSYNC_BEGIN, OP_DIRSYNC_END, OP_ALLSYNC_BEGIN,
    OP_ALLSYNC_END, OP_RENAME, OP_UNLINK, OP_MKDIR, OP_RMDIR, OP_LINK, OP_UNSUPPORTED, OP_MARK, OP_FAULT
};
enum { FLAG_CREATED = 1, FLAG_DSYNC = 2 };
enum fault_class { F_WRITE = 1, F_SYNC = 2, F_OPEN = 4, F_TRUNCATE = 8, F_RENAME = 16, F_UNLINK = 32, F_ALLOCATE = 64, F_MKDIR = 128 };

struct header {
    uint32_t magic;
    uint16_t op, flags;
    uint32_t path_length, path2_length;
    uint64_t data_length, object;
    int64_t offset, result, at_ns;
} __attribute__((packed));

/* Mapped from the control file. The test fills it in and sets `armed` last; `fired` counts the broken calls. */
struct fault {
    uint32_t armed, classes;
    int32_t error; /* errno of the broken call; 0: the write is only short; negative: the signal sent to the process instead */
    uint32_t sticky; /* 1: stays armed after it fired */
    int64_t skip; /* matching calls that pass first */
    int64_t keep_bytes; /* how much a broken write really writes before it fails or ends */
    int64_t fired;
    char path[256]; /* part of the path that a matching call must contain */
};

#define OBJECTS 65536
static struct { ino_t inode; uint64_t object; } objects[OBJECTS]; /* object 0: free, or forgotten after an unlink */
static uint64_t last_object;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static char directory[PATH_MAX];
static size_t directory_length;
static dev_t device;
static const char *skipped = "";
static int log_fd = -1;
static struct fault *fault;

static void die(const char *what) {
    dprintf(2, "recorder: %s: %s\n", what, strerror(errno));
    abort();
}

static void start(void) {
    const char *dir = getenv("KBROKER_RECORD_DIR"), *log = getenv("KBROKER_RECORD_LOG"), *faults = getenv("KBROKER_RECORD_FAULTS");
    struct stat status;
    if (!dir || !log) return;
    if (stat(dir, &status)) die(dir);
    device = status.st_dev;
    if (getenv("KBROKER_RECORD_SKIP")) skipped = strdup(getenv("KBROKER_RECORD_SKIP"));
    if (faults) {
        int fd = syscall(SYS_openat, AT_FDCWD, faults, O_RDWR | O_CLOEXEC, 0);
        void *map = fd < 0 ? MAP_FAILED : (void *)syscall(SYS_mmap, NULL, sizeof *fault, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED) die(faults);
        fault = map;
        syscall(SYS_close, fd);
    }
    int fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0) die(log);
    log_fd = fcntl(fd, F_DUPFD_CLOEXEC, 500); /* out of the way of programs that rely on low numbers */
    if (log_fd < 0) die(log);
    syscall(SYS_close, fd);
    directory_length = strlen(dir);
    memcpy(directory, dir, directory_length + 1);
}

static int recording(void) {
    pthread_once(&once, start);
    return log_fd >= 0;
}

/* ---- the log ------------------------------------------------------------------------------------------------------- */

static void append(enum op op, int flags, uint64_t object, int64_t offset, int64_t result, const char *path, const char *path2,
                   const struct iovec *data, int parts, size_t length) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    struct header header = {0x4c52424b, op, flags, path ? strlen(path) : 0, path2 ? strlen(path2) : 0, length, object, offset, result,
                            now.tv_sec * 1000000000LL + now.tv_nsec};
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

static void append_plain(enum op op, uint64_t object, int64_t offset, int64_t result, const char *path, const char *path2) {
    append(op, 0, object, offset, result, path, path2, NULL, 0, 0);
}

/* ---- identity of files ---------------------------------------------------------------------------------------------- */

/* The path inside of the recorded directory ("" for itself), or NULL if it is elsewhere or ignored. */
static const char *inside(int dirfd, const char *path, char *buffer) {
    if (path[0] != '/') {
        char link[64];
        ssize_t length;
        if (dirfd == AT_FDCWD) {
            if (!getcwd(buffer, PATH_MAX)) return NULL;
            length = strlen(buffer);
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", dirfd);
            length = readlink(link, buffer, PATH_MAX - 1);
            if (length < 0) return NULL;
        }
        if (length + strlen(path) + 2 > PATH_MAX) return NULL;
        buffer[length] = '/';
        strcpy(buffer + length + 1, path);
    } else {
        if (strlen(path) >= PATH_MAX) return NULL;
        strcpy(buffer, path);
    }
    char *to = buffer; /* remove doubled slashes and "/./" */
    for (char *from = buffer; *from;) {
        if (from[0] == '/' && from[1] == '/') from++;
        else if (from[0] == '/' && from[1] == '.' && (from[2] == '/' || !from[2])) from += 2;
        else *to++ = *from++;
    }
    if (to > buffer + 1 && to[-1] == '/') to--;
    *to = 0;
    if (strncmp(buffer, directory, directory_length)) return NULL;
    if (!buffer[directory_length]) return "";
    if (buffer[directory_length] != '/') return NULL;
    const char *name = buffer + directory_length + 1;
    for (const char *ending = skipped; *ending;) {
        size_t length = strcspn(ending, ":"), whole = strlen(name);
        if (length && whole >= length && !strncmp(name + whole - length, ending, length)) return NULL;
        ending += length + (ending[length] == ':');
    }
    return name;
}

static const char *inside_fd(int fd, char *buffer) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return NULL;
    path[length] = 0;
    return inside(AT_FDCWD, path, buffer);
}

static size_t slot_of(ino_t inode) {
    size_t slot = (inode * 2654435761u) % OBJECTS;
    while (objects[slot].inode && objects[slot].inode != inode) slot = (slot + 1) % OBJECTS;
    return slot;
}

static uint64_t object_of(int fd) {
    struct stat status;
    if (fstat(fd, &status) || status.st_dev != device || !S_ISREG(status.st_mode)) return 0;
    return objects[slot_of(status.st_ino)].object;
}

/* A file below the directory is opened or first seen; the caller holds the mutex. */
static uint64_t meet(const struct stat *status, const char *name, int created) {
    size_t slot = slot_of(status->st_ino);
    if (created || !objects[slot].object) {
        if (last_object == OBJECTS / 2) die("too many files for the recorder");
        objects[slot].inode = status->st_ino;
        objects[slot].object = ++last_object;
        append(OP_OPEN, created ? FLAG_CREATED : 0, last_object, created ? 0 : status->st_size, 0, name, NULL, NULL, 0, 0);
    }
    return objects[slot].object;
}

/* The name is removed: if it is the last one, the inode may be reused for another file. */
static void forget(int dirfd, const char *path) {
    struct stat status;
    if (!fstatat(dirfd, path, &status, AT_SYMLINK_NOFOLLOW) && S_ISREG(status.st_mode) && status.st_dev == device && status.st_nlink == 1)
        objects[slot_of(status.st_ino)].object = 0;
}

/* ---- faults -------------------------------------------------------------------------------------------------------- */

/* 1 if this call must be broken; the caller holds the mutex. */
static int breaks(enum fault_class class, const char *name) {
    if (!fault || !__atomic_load_n(&fault->armed, __ATOMIC_ACQUIRE) || !(fault->classes & class)) return 0;
    if (!name || !strstr(name, fault->path)) return 0;
    if (fault->skip > 0) {
        fault->skip--;
        return 0;
    }
    if (!fault->sticky) __atomic_store_n(&fault->armed, 0, __ATOMIC_RELEASE);
    fault->fired++;
    append_plain(OP_FAULT, 0, class, fault->error, name, NULL);
    if (fault->error < 0) syscall(SYS_kill, getpid(), -fault->error);
    return 1;
}

static int breaks_fd(enum fault_class class, int fd) {
    char buffer[PATH_MAX];
    if (!fault || !__atomic_load_n(&fault->armed, __ATOMIC_ACQUIRE)) return 0;
    return breaks(class, inside_fd(fd, buffer));
}

/* A disk that refuses every write for lack of space also reports that it is full. */
static int says_full(void) {
    return recording() && fault && __atomic_load_n(&fault->armed, __ATOMIC_ACQUIRE) && fault->sticky && fault->error == ENOSPC;
}

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

/* ---- open ---------------------------------------------------------------------------------------------------------- */

static int do_open(int dirfd, const char *path, int flags, mode_t mode) {
    char buffer[PATH_MAX];
    const char *name = recording() ? inside(dirfd, path, buffer) : NULL;
    if (!name || !*name || (flags & O_DIRECTORY)) return syscall(SYS_openat, dirfd, path, flags, mode);
    struct stat status;
    pthread_mutex_lock(&mutex);
    if ((flags & (O_CREAT | O_TRUNC | O_WRONLY | O_RDWR)) && breaks(F_OPEN, name)) {
        pthread_mutex_unlock(&mutex);
        errno = fault->error;
        return -1;
    }
    int existed = !fstatat(dirfd, path, &status, 0);
    int fd = syscall(SYS_openat, dirfd, path, flags, mode), saved = errno;
    if (fd >= 0 && !fstat(fd, &status) && S_ISREG(status.st_mode) && status.st_dev == device) {
        uint64_t object = meet(&status, name, !existed);
        if ((flags & O_TRUNC) && existed) append_plain(OP_TRUNCATE, object, 0, 0, NULL, NULL);
    }
    pthread_mutex_unlock(&mutex);
    errno = saved;
    return fd;
}

#define MODE(last) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, last); mode = va_arg(rest, mode_t); va_end(rest); }

int open(const char *path, int flags, ...) { MODE(flags) return do_open(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return do_open(AT_FDCWD, path, flags, mode); }
int openat(int dirfd, const char *path, int flags, ...) { MODE(flags) return do_open(dirfd, path, flags, mode); }
int openat64(int dirfd, const char *path, int flags, ...) { MODE(flags) return do_open(dirfd, path, flags, mode); }
int creat(const char *path, mode_t mode) { return do_open(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return creat(path, mode); }
int __open_2(const char *path, int flags) { return do_open(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return do_open(AT_FDCWD, path, flags, 0); }
int __openat_2(int dirfd, const char *path, int flags) { return do_open(dirfd, path, flags, 0); }
int __openat64_2(int dirfd, const char *path, int flags) { return do_open(dirfd, path, flags, 0); }

/* ---- writes -------------------------------------------------------------------------------------------------------- */

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

static ssize_t do_write(int fd, const struct iovec *data, int parts, off_t offset, int flags) {
    uint64_t object = recording() ? object_of(fd) : 0;
    if (!object) return real_write(fd, data, parts, offset, flags);
    pthread_mutex_lock(&mutex);
    int broken = breaks_fd(F_WRITE, fd);
    ssize_t written = broken ? broken_write(fd, data, offset) : real_write(fd, data, parts, offset, flags);
    int saved = errno;
    if (written > 0) {
        off_t place = offset >= 0 ? offset : lseek(fd, 0, SEEK_CUR) - written;
        int synced = (fcntl(fd, F_GETFL) & O_DSYNC) || (flags & (RWF_DSYNC | RWF_SYNC));
        append(OP_WRITE, synced ? FLAG_DSYNC : 0, object, place, 0, NULL, NULL, data, parts, written);
    }
    pthread_mutex_unlock(&mutex);
    if (broken && fault->error) {
        errno = fault->error;
        return -1;
    }
    errno = saved;
    return written;
}

ssize_t write(int fd, const void *data, size_t size) {
    if (!recording()) return syscall(SYS_write, fd, data, size);
    struct iovec part = {(void *)data, size};
    return object_of(fd) ? do_write(fd, &part, 1, -1, 0) : syscall(SYS_write, fd, data, size);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    struct iovec part = {(void *)data, size};
    return do_write(fd, &part, 1, offset, 0);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset) { return pwrite(fd, data, size, offset); }
ssize_t writev(int fd, const struct iovec *data, int parts) { return do_write(fd, data, parts, -1, 0); }
ssize_t pwritev(int fd, const struct iovec *data, int parts, off_t offset) { return do_write(fd, data, parts, offset, 0); }
ssize_t pwritev64(int fd, const struct iovec *data, int parts, off_t offset) { return do_write(fd, data, parts, offset, 0); }
ssize_t pwritev2(int fd, const struct iovec *data, int parts, off_t offset, int flags) { return do_write(fd, data, parts, offset, flags); }
ssize_t pwritev64v2(int fd, const struct iovec *data, int parts, off_t offset, int flags) {
    return do_write(fd, data, parts, offset, flags);
}

/* Bytes that the kernel moved: read them back from the file. */
static void append_moved(int fd, uint64_t object, off_t place, ssize_t size) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int reader = syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC, 0);
    char *bytes = malloc(size);
    if (reader < 0 || !bytes || pread(reader, bytes, size, place) != size) die("moved bytes cannot be read back");
    struct iovec part = {bytes, size};
    append(OP_WRITE, 0, object, place, 0, NULL, NULL, &part, 1, size);
    free(bytes);
    syscall(SYS_close, reader);
}

ssize_t copy_file_range(int from, off64_t *from_offset, int to, off64_t *to_offset, size_t size, unsigned flags) {
    uint64_t object = recording() ? object_of(to) : 0;
    if (!object) return syscall(SYS_copy_file_range, from, from_offset, to, to_offset, size, flags);
    pthread_mutex_lock(&mutex);
    ssize_t moved = syscall(SYS_copy_file_range, from, from_offset, to, to_offset, size, flags);
    int saved = errno;
    if (moved > 0) append_moved(to, object, (to_offset ? *to_offset : lseek(to, 0, SEEK_CUR)) - moved, moved);
    pthread_mutex_unlock(&mutex);
    errno = saved;
    return moved;
}

ssize_t sendfile(int to, int from, off_t *offset, size_t size) {
    uint64_t object = recording() ? object_of(to) : 0;
    if (!object) return syscall(SYS_sendfile, to, from, offset, size);
    pthread_mutex_lock(&mutex);
    ssize_t moved = syscall(SYS_sendfile, to, from, offset, size);
    int saved = errno;
    if (moved > 0) append_moved(to, object, lseek(to, 0, SEEK_CUR) - moved, moved);
    pthread_mutex_unlock(&mutex);
    errno = saved;
    return moved;
}
ssize_t sendfile64(int to, int from, off_t *offset, size_t size) { return sendfile(to, from, offset, size); }

/* ---- writable shared mappings -------------------------------------------------------------------------------------- */

/* Stores through a mapping cannot be intercepted. They are read from the file when it is synced and when the mapping is
 * removed; in between a replay treats them as lost, as a power cut may do. */
#define MAPPINGS 64
static struct { void *address; size_t size; off_t offset; uint64_t object; int fd; } mappings[MAPPINGS];

static void append_mapping(int place) {
    struct stat status;
    if (fstat(mappings[place].fd, &status)) die("a mapped file");
    off_t rest = status.st_size - mappings[place].offset;
    if (rest > 0) append_moved(mappings[place].fd, mappings[place].object, mappings[place].offset,
                               rest < (off_t)mappings[place].size ? rest : (off_t)mappings[place].size);
}

static void append_mappings_of(uint64_t object) {
    for (int place = 0; place < MAPPINGS; place++)
        if (mappings[place].object && (!object || mappings[place].object == object)) append_mapping(place);
}

void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset) {
    int follow = fd >= 0 && (flags & MAP_TYPE) != MAP_PRIVATE && (protection & PROT_WRITE) && recording();
    uint64_t object = follow ? object_of(fd) : 0;
    void *result = (void *)syscall(SYS_mmap, address, size, protection, flags, fd, offset);
    if (!object || result == MAP_FAILED) return result;
    pthread_mutex_lock(&mutex);
    int place = 0;
    while (place < MAPPINGS && mappings[place].object) place++;
    if (place == MAPPINGS) die("too many writable mappings");
    mappings[place].address = result, mappings[place].size = size, mappings[place].offset = offset;
    mappings[place].object = object, mappings[place].fd = fcntl(fd, F_DUPFD_CLOEXEC, 500);
    pthread_mutex_unlock(&mutex);
    return result;
}
void *mmap64(void *address, size_t size, int protection, int flags, int fd, off_t offset) {
    return mmap(address, size, protection, flags, fd, offset);
}

int munmap(void *address, size_t size) {
    if (!recording()) return syscall(SYS_munmap, address, size);
    pthread_mutex_lock(&mutex);
    for (int place = 0; place < MAPPINGS; place++)
        if (mappings[place].object && mappings[place].address == address) {
            append_mapping(place);
            syscall(SYS_close, mappings[place].fd);
            mappings[place].object = 0;
        }
    pthread_mutex_unlock(&mutex);
    return syscall(SYS_munmap, address, size);
}

/* ---- sizes --------------------------------------------------------------------------------------------------------- */

int ftruncate(int fd, off_t size) {
    uint64_t object = recording() ? object_of(fd) : 0;
    if (!object) return syscall(SYS_ftruncate, fd, size);
    pthread_mutex_lock(&mutex);
    int broken = breaks_fd(F_TRUNCATE, fd);
    int result = broken ? -1 : syscall(SYS_ftruncate, fd, size), saved = broken ? fault->error : errno;
    if (!result) append_plain(OP_TRUNCATE, object, size, 0, NULL, NULL);
    pthread_mutex_unlock(&mutex);
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
    pthread_mutex_lock(&mutex);
    fstat(fd, &before);
    int broken = breaks_fd(F_ALLOCATE, fd);
    int result = broken ? -1 : syscall(SYS_fallocate, fd, mode, offset, size), saved = broken ? fault->error : errno;
    fstat(fd, &after);
    if (!result && after.st_size != before.st_size) append_plain(OP_TRUNCATE, object, after.st_size, 0, NULL, NULL);
    if (!result && (mode & ~FALLOC_FL_KEEP_SIZE)) append_moved(fd, object, offset, offset + size > after.st_size ? after.st_size - offset : size);
    pthread_mutex_unlock(&mutex);
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

/* ---- names --------------------------------------------------------------------------------------------------------- */

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    char from_buffer[PATH_MAX], to_buffer[PATH_MAX];
    const char *name = recording() ? inside(from_dir, from, from_buffer) : NULL, *name2 = name ? inside(to_dir, to, to_buffer) : NULL;
    if (!name || !name2) return syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
    pthread_mutex_lock(&mutex);
    int broken = breaks(F_RENAME, name2), result = -1, saved = broken ? fault->error : 0;
    if (!broken) {
        struct stat one, other;
        if (fstatat(from_dir, from, &one, 0) || fstatat(to_dir, to, &other, 0) || one.st_ino != other.st_ino) forget(to_dir, to);
        result = syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
        saved = errno;
        if (!result) append_plain(flags ? OP_UNSUPPORTED : OP_RENAME, 0, 0, 0, name, name2);
    }
    pthread_mutex_unlock(&mutex);
    errno = saved;
    return result;
}
int renameat(int from_dir, const char *from, int to_dir, const char *to) { return renameat2(from_dir, from, to_dir, to, 0); }
int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }

int unlinkat(int dirfd, const char *path, int flags) {
    char buffer[PATH_MAX];
    const char *name = recording() ? inside(dirfd, path, buffer) : NULL;
    if (!name) return syscall(SYS_unlinkat, dirfd, path, flags);
    pthread_mutex_lock(&mutex);
    int broken = breaks(F_UNLINK, name), result = -1, saved = broken ? fault->error : 0;
    if (!broken) {
        forget(dirfd, path);
        result = syscall(SYS_unlinkat, dirfd, path, flags);
        saved = errno;
        if (!result) append_plain(flags & AT_REMOVEDIR ? OP_RMDIR : OP_UNLINK, 0, 0, 0, name, NULL);
    }
    pthread_mutex_unlock(&mutex);
    errno = saved;
    return result;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char *path) {
    int result = unlinkat(AT_FDCWD, path, 0);
    return result && errno == EISDIR ? rmdir(path) : result;
}

int mkdirat(int dirfd, const char *path, mode_t mode) {
    char buffer[PATH_MAX];
    const char *name = recording() ? inside(dirfd, path, buffer) : NULL;
    if (!name) return syscall(SYS_mkdirat, dirfd, path, mode);
    pthread_mutex_lock(&mutex);
    int broken = breaks(F_MKDIR, name);
    int result = broken ? -1 : syscall(SYS_mkdirat, dirfd, path, mode), saved = broken ? fault->error : errno;
    if (!result) append_plain(OP_MKDIR, 0, 0, 0, name, NULL);
    pthread_mutex_unlock(&mutex);
    errno = saved;
    return result;
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags) {
    char from_buffer[PATH_MAX], to_buffer[PATH_MAX];
    const char *name2 = recording() ? inside(to_dir, to, to_buffer) : NULL, *name = name2 ? inside(from_dir, from, from_buffer) : NULL;
    if (!name2) return syscall(SYS_linkat, from_dir, from, to_dir, to, flags);
    pthread_mutex_lock(&mutex);
    int result = syscall(SYS_linkat, from_dir, from, to_dir, to, flags), saved = errno;
    if (!result) append_plain(name ? OP_LINK : OP_UNSUPPORTED, 0, 0, 0, name ? name : from, name2);
    pthread_mutex_unlock(&mutex);
    errno = saved;
    return result;
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

int symlinkat(const char *target, int dirfd, const char *path) {
    char buffer[PATH_MAX];
    const char *name = recording() ? inside(dirfd, path, buffer) : NULL;
    pthread_mutex_lock(&mutex);
    if (name) append_plain(OP_UNSUPPORTED, 0, 0, 0, name, "symbolic link");
    pthread_mutex_unlock(&mutex);
    return syscall(SYS_symlinkat, target, dirfd, path);
}
int symlink(const char *target, const char *path) { return symlinkat(target, AT_FDCWD, path); }

/* ---- syncs --------------------------------------------------------------------------------------------------------- */

static int do_sync(int fd, long number) {
    struct stat status;
    char buffer[PATH_MAX];
    if (!recording() || fstat(fd, &status) || status.st_dev != device) return syscall(number, fd);
    int whole = number == SYS_syncfs, is_directory = S_ISDIR(status.st_mode);
    uint64_t object = whole || is_directory ? 0 : object_of(fd);
    const char *name = is_directory || whole ? inside_fd(fd, buffer) : NULL;
    if (!object && !name && !whole) return syscall(number, fd);
    enum op begin = whole ? OP_ALLSYNC_BEGIN : is_directory ? OP_DIRSYNC_BEGIN : OP_SYNC_BEGIN;
    static int64_t last_sync;
    pthread_mutex_lock(&mutex);
    int64_t sync = ++last_sync;
    int broken = whole ? breaks(F_SYNC, name) : breaks_fd(F_SYNC, fd);
    if (!is_directory || whole) append_mappings_of(object);
    append_plain(begin, object, sync, 0, whole ? NULL : name, NULL);
    pthread_mutex_unlock(&mutex);
    int result = broken ? -1 : syscall(number, fd), saved = broken ? fault->error : errno;
    pthread_mutex_lock(&mutex);
    append_plain(begin + 1, object, sync, result ? saved : 0, whole ? NULL : name, NULL);
    pthread_mutex_unlock(&mutex);
    errno = saved;
    return result;
}

int fsync(int fd) { return do_sync(fd, SYS_fsync); }
int fdatasync(int fd) { return do_sync(fd, SYS_fdatasync); }
int syncfs(int fd) { return do_sync(fd, SYS_syncfs); }
void sync(void) {
    int fd = recording() ? syscall(SYS_openat, AT_FDCWD, directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0) : -1;
    if (fd >= 0) {
        do_sync(fd, SYS_syncfs);
        syscall(SYS_close, fd);
    }
    syscall(SYS_sync);
}
