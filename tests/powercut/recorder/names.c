/* Names of files and directories. */
#include "recorder.h"

#include <stdio.h>

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    char from_buffer[PATH_MAX], to_buffer[PATH_MAX];
    const char *name = recording() ? inside(from_dir, from, from_buffer) : NULL;
    const char *name2 = name ? inside(to_dir, to, to_buffer) : NULL;
    if (!name || !name2) return syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
    enter();
    int broken = breaks(F_RENAME, name2), result = -1, saved = broken ? fault->error : 0;
    if (!broken) {
        struct stat one, other;
        if (fstatat(from_dir, from, &one, 0) || fstatat(to_dir, to, &other, 0) || one.st_ino != other.st_ino)
            forget(to_dir, to);
        result = syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
        saved = errno;
        if (!result) append_names(flags ? OP_UNSUPPORTED : OP_RENAME, name, name2);
    }
    leave();
    errno = saved;
    return result;
}
int renameat(int from_dir, const char *from, int to_dir, const char *to) {
    return renameat2(from_dir, from, to_dir, to, 0);
}
int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }

int unlinkat(int dirfd, const char *path, int flags) {
    char buffer[PATH_MAX];
    const char *name = recording() ? inside(dirfd, path, buffer) : NULL;
    if (!name) return syscall(SYS_unlinkat, dirfd, path, flags);
    enter();
    int broken = breaks(F_UNLINK, name), result = -1, saved = broken ? fault->error : 0;
    if (!broken) {
        forget(dirfd, path);
        result = syscall(SYS_unlinkat, dirfd, path, flags);
        saved = errno;
        if (!result) append_names(flags & AT_REMOVEDIR ? OP_RMDIR : OP_UNLINK, name, NULL);
    }
    leave();
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
    enter();
    int broken = breaks(F_MKDIR, name);
    int result = broken ? -1 : syscall(SYS_mkdirat, dirfd, path, mode), saved = broken ? fault->error : errno;
    if (!result) append_names(OP_MKDIR, name, NULL);
    leave();
    errno = saved;
    return result;
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags) {
    char from_buffer[PATH_MAX], to_buffer[PATH_MAX];
    const char *name2 = recording() ? inside(to_dir, to, to_buffer) : NULL;
    const char *name = name2 ? inside(from_dir, from, from_buffer) : NULL;
    if (!name2) return syscall(SYS_linkat, from_dir, from, to_dir, to, flags);
    enter();
    int result = syscall(SYS_linkat, from_dir, from, to_dir, to, flags), saved = errno;
    if (!result) append_names(name ? OP_LINK : OP_UNSUPPORTED, name ? name : from, name2);
    leave();
    errno = saved;
    return result;
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

int symlinkat(const char *target, int dirfd, const char *path) {
    char buffer[PATH_MAX];
    const char *name = recording() ? inside(dirfd, path, buffer) : NULL;
    if (!name) return syscall(SYS_symlinkat, target, dirfd, path);
    enter();
    append_names(OP_UNSUPPORTED, name, "symbolic link");
    int result = syscall(SYS_symlinkat, target, dirfd, path), saved = errno;
    leave();
    errno = saved;
    return result;
}
int symlink(const char *target, const char *path) { return symlinkat(target, AT_FDCWD, path); }
