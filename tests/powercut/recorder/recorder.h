/* A preloaded library that logs all changes of a process to the files below one directory, and injects
 * faults.
 *
 * Environment:
 *   KBROKER_RECORD_DIR      absolute, real path of the directory whose files are recorded
 *   KBROKER_RECORD_LOG      the log (outside of that directory), which is appended to
 *   KBROKER_RECORD_CONTROL  a file of zeros (struct control) that is mapped here and by the test
 *   KBROKER_RECORD_SKIP     suffixes of file names that are ignored, separated by ':', optional
 *   KBROKER_RECORD_FAULTS   a file (struct fault), optional; the test writes it while the process runs
 *
 * log.c has the format of the log, and sections.c the order of its records.
 *
 * The real operations are made as raw system calls: no function of libc is intercepted twice. What cannot
 * be recorded faithfully (a symbolic link, names that change places) is logged as UNSUPPORTED, and replay
 * refuses it. Not recorded: stdio's own writes and direct system calls; the tests compare the bytes of a
 * replay with those on the disk.
 */
#ifndef RECORDER_H
#define RECORDER_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

/* Only the intercepted functions are exported. Any other name could stand in for a function of the process
 * or of one of its libraries. */
#pragma GCC visibility push(hidden)

/* ---- start.c --------------------------------------------------------------------------------- */

/* 1 if this process is recorded. */
int recording(void);
void die(const char *message) __attribute__((noreturn));

/* ---- sections.c ------------------------------------------------------------------------------ */

/* Shared by the recorded processes and the test. */
struct control {
    uint32_t stop; /* set by the test: no section begins */
    uint32_t busy; /* how many sections are under way, at most one for each process */
    uint64_t last_object;
    int64_t last_sync;
};

extern struct control *control;
void enter(void);
void leave(void);
void end_process(int signal);

/* ---- log.c ----------------------------------------------------------------------------------- */

enum op {
    OP_OPEN = 1, OP_WRITE, OP_TRUNCATE, OP_SYNC_BEGIN, OP_SYNC_END, OP_DIRSYNC_BEGIN, OP_DIRSYNC_END,
    OP_ALLSYNC_BEGIN, OP_ALLSYNC_END, OP_RENAME, OP_UNLINK, OP_MKDIR, OP_RMDIR, OP_LINK, OP_UNSUPPORTED,
    OP_MARK, OP_FAULT
};
enum { FLAG_CREATED = 1, FLAG_DSYNC = 2 };

extern int log_fd;
void open_log(const char *path);
int is_log(int fd);
void append(enum op op, int flags, uint64_t object, int64_t offset, int64_t result, const char *path);
void append_names(enum op op, const char *path, const char *path2);
void append_write(int flags, uint64_t object, int64_t offset, const struct iovec *data, int parts,
                  size_t size);
void append_moved(int fd, uint64_t object, off_t offset, ssize_t size);

/* ---- files.c --------------------------------------------------------------------------------- */

extern char directory[PATH_MAX];
extern dev_t device;
void watch(const char *path, const char *skipped_endings);
const char *inside(int dirfd, const char *path, char *buffer);
const char *inside_fd(int fd, char *buffer);
uint64_t object_of(int fd);
uint64_t meet(const struct stat *status, const char *name, int created);
void forget(int dirfd, const char *path);

/* ---- faults.c -------------------------------------------------------------------------------- */

enum fault_class {
    F_WRITE = 1, F_SYNC = 2, F_OPEN = 4, F_TRUNCATE = 8, F_RENAME = 16, F_UNLINK = 32, F_ALLOCATE = 64,
    F_MKDIR = 128
};

/* Mapped from the file. The test fills it in and sets `armed` last; `fired` counts the broken calls. */
struct fault {
    uint32_t armed, classes;
    int32_t error; /* errno of the broken call; 0: the write is only short; negative: the signal that the
                      process gets instead */
    uint32_t sticky; /* 1: stays armed after it fired */
    int64_t skip; /* matching calls that pass first */
    int64_t keep_bytes; /* how much a broken write really writes before it fails or ends */
    int64_t fired;
    char path[256]; /* part of the path that a matching call must contain */
};

extern struct fault *fault;
int breaks(enum fault_class class, const char *name);
int breaks_fd(enum fault_class class, int fd);

/* ---- opens.c, mappings.c --------------------------------------------------------------------- */

int do_open(int dirfd, const char *path, int flags, mode_t mode);
void append_mappings_of(uint64_t object);

#pragma GCC visibility pop
#endif
