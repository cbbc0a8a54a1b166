"""What a state store takes on the disk, and what it says that it still needs: the sum stays the
same while the store works. The room for dead letters on a nearly full disk lies beside that sum
(broker/logs/disk_floor.py), and a store that takes its own space must not use it up."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kbroker.plugins import state_store_factory
from kbroker.storage.spi import ON_DISK


def taken_bytes(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


@pytest.mark.parametrize("prefix", [b"some/", ON_DISK])
@pytest.mark.parametrize("engine", ["segment", "lmdb"])
def test_the_space_that_a_store_takes_is_no_longer_needed(engine: str, prefix: bytes, tmp_path: Path) -> None:
    """It overwrites 200 kB with 40 MB, so it rewrites its log, or moves it, some times."""
    store = state_store_factory(engine).open(tmp_path / "state", {}, 1)
    rng = random.Random(1)
    store.write([(prefix + b"%d" % number, rng.randbytes(10_000)) for number in range(20)])
    store.sync()
    first = taken_bytes(tmp_path) + store.least_free_bytes()
    most = first
    for number in range(4000):
        store.write([(prefix + b"%d" % rng.randrange(20), rng.randbytes(10_000))])
        if number % 10 == 0:
            store.sync()
            most = max(most, taken_bytes(tmp_path) + store.least_free_bytes())
    store.close()
    assert most - first < 1 << 20
