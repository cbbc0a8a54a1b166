"""What the C library does with memory that the process has freed.

glibc gives each large block (from 128 KiB on) back to the system when it is freed, and takes it
anew for the next request of a megabyte: the kernel then clears and maps every page again, which
cost more than half of what producing in batches of 1 MB took (2.1 ms a megabyte, 0.8 without). So
some of it is kept.
"""

from __future__ import annotations

import ctypes
import logging

logger = logging.getLogger(__name__)

KEEP_BYTES = 16 << 20
"""Freed memory at the end of the heap that stays with the process."""
_MAP_FROM_BYTES = 4 << 20
"""Blocks of this size and more are mapped each for itself, and given back at once."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> bool:
    """Whether the C library could be told (glibc's mallopt); others have their own ways, and
    nothing depends on it."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError) as error:
        logger.debug("the C library's allocator stays as it is: %s", error)
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _MAP_FROM_BYTES) and mallopt(_M_TRIM_THRESHOLD, KEEP_BYTES))
