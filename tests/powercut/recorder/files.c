/* Which file is it? Files are identified by device and inode, looked up at every call, so that duplicated,
 * inherited and internally closed descriptors need no bookkeeping. */
#include "recorder.h"

#include <stdio.h>
#include <string.h>

#define OBJECTS 65536
static struct { ino_t inode; uint64_t object; } objects[OBJECTS]; /* 0: free, or forgotten after an unlink */
static int seen;
char directory[PATH_MAX];
static size_t directory_length;
dev_t device;
static const char *skipped = "";

/* Record what is below `path`. `skipped_endings` may be NULL. */
void watch(const char *path, const char *skipped_endings) {
    struct stat status;
    if (stat(path, &status)) die(path);
    device = status.st_dev;
    if (skipped_endings && !(skipped = strdup(skipped_endings))) die("no memory");
    directory_length = strlen(path);
    if (directory_length >= sizeof directory) die(path);
    memcpy(directory, path, directory_length + 1);
}

/* The absolute path, or 0 if it has none. */
static int absolute(int dirfd, const char *path, char *buffer) {
    ssize_t length = 0;
    if (path[0] != '/') {
        if (dirfd == AT_FDCWD) {
            if (!getcwd(buffer, PATH_MAX)) return 0;
            length = strlen(buffer);
        } else {
            char link[64];
            snprintf(link, sizeof link, "/proc/self/fd/%d", dirfd);
            length = readlink(link, buffer, PATH_MAX - 1);
            if (length < 0) return 0;
        }
    }
    if (length + strlen(path) + 2 > PATH_MAX) return 0;
    buffer[length] = '/';
    strcpy(buffer + length + (path[0] != '/'), path);
    return 1;
}

/* Remove doubled slashes, "/./", and a slash at the end. */
static void clean(char *path) {
    char *to = path;
    for (char *from = path; *from;) {
        if (from[0] == '/' && from[1] == '/') from++;
        else if (from[0] == '/' && from[1] == '.' && (from[2] == '/' || !from[2])) from += 2;
        else *to++ = *from++;
    }
    if (to > path + 1 && to[-1] == '/') to--;
    *to = 0;
}

/* The path inside of the recorded directory ("" for itself), or NULL if it is elsewhere or ignored. */
const char *inside(int dirfd, const char *path, char *buffer) {
    if (!absolute(dirfd, path, buffer)) return NULL;
    clean(buffer);
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

const char *inside_fd(int fd, char *buffer) {
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

/* 0: not a recorded file. */
uint64_t object_of(int fd) {
    struct stat status;
    if (fstat(fd, &status) || status.st_dev != device || !S_ISREG(status.st_mode)) return 0;
    return objects[slot_of(status.st_ino)].object;
}

/* A file below the directory is opened or first seen; the caller is in a section. */
uint64_t meet(const struct stat *status, const char *name, int created) {
    size_t slot = slot_of(status->st_ino);
    if (created || !objects[slot].object) {
        if (++seen > OBJECTS / 2) die("too many files for the recorder");
        uint64_t object = __atomic_add_fetch(&control->last_object, 1, __ATOMIC_RELAXED);
        objects[slot].inode = status->st_ino;
        objects[slot].object = object;
        append(OP_OPEN, created ? FLAG_CREATED : 0, object, created ? 0 : status->st_size, 0, name);
    }
    return objects[slot].object;
}

/* The name is removed: if it is the last one, the inode may be reused for another file. */
void forget(int dirfd, const char *path) {
    struct stat status;
    if (fstatat(dirfd, path, &status, AT_SYMLINK_NOFOLLOW) || !S_ISREG(status.st_mode)) return;
    if (status.st_dev == device && status.st_nlink == 1) objects[slot_of(status.st_ino)].object = 0;
}
