"""Free memory that is there: on a virtual machine it may not be.

A hypervisor may take back what a guest has not used for some seconds (Linux: free page reporting),
and give it again page by page when it is touched. On the machine of the kept results that takes 2.3
ms for a megabyte, three times as long as producing it takes the broker; whose window is hit by it
is chance. So memory for what a window writes into the page cache is touched shortly before it.
"""

from __future__ import annotations

import mmap
import os

WINDOW_BYTES = 3 << 30
"""More than any row of produce has written in a window."""
_CHUNK = bytes(2 << 20)


def warm_memory(size_bytes: int = WINDOW_BYTES) -> None:
    """Touch as much memory as a window needs, at most half of what is free, and free it again."""
    size_bytes = min(size_bytes, _free_bytes() // 2) // len(_CHUNK) * len(_CHUNK)
    if not size_bytes:
        return
    with mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        for _ in range(size_bytes // len(_CHUNK)):
            memory.write(_CHUNK)


def _free_bytes() -> int:
    """0 where the system does not say."""
    names = os.sysconf_names
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if "SC_AVPHYS_PAGES" in names else 0
