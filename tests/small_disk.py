"""Disks that can be filled: a small tmpfs, and a small ext4 on a loop device. They need the right
to mount them; tests are skipped without it. And a broker on such a disk."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from pathlib import Path

import pytest

from kbroker.broker.broker import Broker, open_broker
from kbroker.broker.options import StartOptions
from kbroker.settings.altering import BrokerConfig


@contextmanager
def small_disk(mount_point: Path, size_bytes: int) -> Iterator[Path]:
    with _mounted(mount_point, "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs") as disk:
        yield disk


@contextmanager
def small_loop_disk(mount_point: Path, size_bytes: int) -> Iterator[Path]:
    """ext4 in a file beside the mount point. Its own records take a few MiB of the size."""
    image = mount_point.with_name(mount_point.name + ".img")
    with image.open("wb") as file:
        file.truncate(size_bytes)
    try:
        made = subprocess.run(
            ["mkfs.ext4", "-q", "-m", "0", str(image)], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("no mkfs.ext4 to make a small file system with")
    if made.returncode != 0:
        pytest.skip(f"no small file system can be made: {made.stderr.strip()}")
    try:
        with _mounted(mount_point, "-o", "loop", str(image)) as disk:
            yield disk
    finally:
        image.unlink()


@contextmanager
def _mounted(mount_point: Path, *what: str) -> Iterator[Path]:
    mount_point.mkdir()
    command = ["mount", *what, str(mount_point)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"no right to mount a small file system: {mounted.stderr.strip()}")
    try:
        yield mount_point
    finally:
        subprocess.run(["umount", "-l", str(mount_point)], check=True)


def broker_on(disk: Path, engine: str, **config: str) -> AbstractAsyncContextManager[Broker]:
    options = StartOptions(
        data_dir=disk / "data",
        storage=engine,
        state_storage=engine,
        config=BrokerConfig(config),
        listen=("127.0.0.1", 9092),
    )
    return open_broker(options)


def free_bytes(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


def fill_the_rest(disk: Path, *, but_bytes: int = 0) -> Path:
    """Another program takes what is free, but for so many bytes. Returns its file."""
    path = disk / "ballast"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        with suppress(OSError):
            while free_bytes(disk) > but_bytes and os.write(fd, bytes(4096)):
                pass
    finally:
        os.close(fd)
    return path
