"""Where the C library is glibc, freed memory stays with the broker instead of going back to the
kernel."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

ROUNDS = 50
SCRIPT = f"""
import resource
from kbroker.server.run import keep_freed_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range({ROUNDS}):
        first = bytearray(1 << 20)
        second = bytes(1 << 20)
        del first, second
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults(), keep_freed_memory(), faults() // 10**9, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library, which is left as it is")
def test_large_blocks_are_not_mapped_anew_each_time() -> None:
    before, kept, _, after = subprocess.run(
        [sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True
    ).stdout.split()
    assert kept == "True"
    assert int(after) < int(before) / 10, "page faults"
