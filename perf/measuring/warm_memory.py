"""Makes free memory available. On a virtual machine, free memory may not be backed by the host.

A hypervisor may reclaim memory that the guest has not used for some seconds (Linux: free page
reporting), and return it page by page when it is touched. On the machine of the stored results this
takes 2.3 ms per megabyte, three times as long as the broker needs to store a produced megabyte. It
would affect windows at random. The memory that a window writes into the page cache is therefore
touched shortly before the window.
"""

from __future__ import annotations

import mmap
import os

WINDOW_BYTES = 3 << 30
"""More than any produce row writes in a window."""
_CHUNK = bytes(2 << 20)


def warm_memory(size_bytes: int = WINDOW_BYTES) -> None:
    """Touches the memory that a window needs, at most half of the free memory, and frees it
    again."""
    size_bytes = min(size_bytes, _free_bytes() // 2) // len(_CHUNK) * len(_CHUNK)
    if not size_bytes:
        return
    with mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        for _ in range(size_bytes // len(_CHUNK)):
            memory.write(_CHUNK)


def _free_bytes() -> int:
    """0 if the system does not report it."""
    names = os.sysconf_names
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if "SC_AVPHYS_PAGES" in names else 0
