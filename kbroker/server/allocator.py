"""Makes the C library keep some of the memory that the process has freed, for all threads
together.

glibc returns each large block (128 KiB or more) to the system when it is freed, and maps a new one
for the next request of a megabyte. The kernel then clears and maps every page again: more than half
of the cost of producing in batches of 1 MB (2.1 ms a megabyte, 0.8 without).

By default glibc gives a thread an arena of its own, and each arena would keep that much. Threads
that read parked batches kept 35 MB so. Python's threads take turns anyway, so one arena is enough.
"""

from __future__ import annotations

import ctypes
import logging

logger = logging.getLogger(__name__)

KEEP_BYTES = 16 << 20
"""Freed memory at the end of the heap that stays with the process."""
_MAP_FROM_BYTES = 4 << 20
"""Blocks of at least this size have a mapping each, and are returned to the system at once."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def keep_freed_memory() -> bool:
    """Whether the C library has glibc's mallopt and took the settings. Nothing depends on it."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError) as error:
        logger.debug("the C library's allocator stays as it is: %s", error)
        return False
    settings = (_M_MMAP_THRESHOLD, _MAP_FROM_BYTES), (_M_TRIM_THRESHOLD, KEEP_BYTES), (_M_ARENA_MAX, 1)
    return all([mallopt(*each) for each in settings])
