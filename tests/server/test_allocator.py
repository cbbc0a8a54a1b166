"""Where the C library is glibc: some freed memory stays with the broker instead of going back to
the kernel, and holes in its heap go back."""

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


HOLES = """
import random
import trio
from kbroker.server import run
run.keep_freed_memory()
run._TRIM_EVERY_S = 0.01

def anonymous_mb():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) // 1024 for line in status if line.startswith("RssAnon"))

async def main():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run.return_freed_memory)
        await trio.testing.wait_all_tasks_blocked()
        blocks = [bytes([1]) * random.Random(7).randrange(20_000, 60_000) for _ in range(2000)]
        full = anonymous_mb()
        kept = blocks[::20]
        del blocks
        with trio.fail_after(60):
            while anonymous_mb() > full - 50:
                await trio.sleep(0.01)
        assert all(block.count(1) == len(block) for block in kept)
        nursery.cancel_scope.cancel()

import trio.testing
trio.run(main)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library, which is left as it is")
def test_holes_in_the_heap_go_back_to_the_system() -> None:
    """80 MB of blocks, of which every twentieth stays: glibc alone keeps all 80."""
    done = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
