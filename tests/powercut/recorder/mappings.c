/* Writable shared mappings. Stores through a mapping cannot be intercepted. They are read from the file when
 * it is synced and when the mapping is removed; in between a replay treats them as lost, as a power cut may
 * do. So it does with those of a process that is killed while it has the mapping. */
#include "recorder.h"

#include <sys/mman.h>

#define MAPPINGS 64
static struct { void *address; size_t size; off_t offset; uint64_t object; int fd; } mappings[MAPPINGS];

static void append_mapping(int place) {
    struct stat status;
    if (fstat(mappings[place].fd, &status)) die("a mapped file");
    off_t rest = status.st_size - mappings[place].offset, size = mappings[place].size;
    if (rest > 0)
        append_moved(mappings[place].fd, mappings[place].object, mappings[place].offset,
                     rest < size ? rest : size);
}

/* All mappings of a file, or with 0 of all files; the caller is in a section. */
void append_mappings_of(uint64_t object) {
    for (int place = 0; place < MAPPINGS; place++)
        if (mappings[place].object && (!object || mappings[place].object == object)) append_mapping(place);
}

void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset) {
    int follow = fd >= 0 && (flags & MAP_TYPE) != MAP_PRIVATE && (protection & PROT_WRITE) && recording();
    uint64_t object = follow ? object_of(fd) : 0;
    void *result = (void *)syscall(SYS_mmap, address, size, protection, flags, fd, offset);
    if (!object || result == MAP_FAILED) return result;
    enter();
    int place = 0;
    while (place < MAPPINGS && mappings[place].object) place++;
    if (place == MAPPINGS) die("too many writable mappings");
    mappings[place].address = result, mappings[place].size = size, mappings[place].offset = offset;
    mappings[place].object = object, mappings[place].fd = fcntl(fd, F_DUPFD_CLOEXEC, 500);
    leave();
    return result;
}
void *mmap64(void *address, size_t size, int protection, int flags, int fd, off_t offset) {
    return mmap(address, size, protection, flags, fd, offset);
}

int munmap(void *address, size_t size) {
    if (!recording()) return syscall(SYS_munmap, address, size);
    enter();
    for (int place = 0; place < MAPPINGS; place++)
        if (mappings[place].object && mappings[place].address == address) {
            append_mapping(place);
            syscall(SYS_close, mappings[place].fd);
            mappings[place].object = 0;
        }
    leave();
    return syscall(SYS_munmap, address, size);
}
