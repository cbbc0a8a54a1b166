"""The properties of the machine that affect the figures."""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

_SYNCS = 200
_BLOCK = b"x" * 4096


def describe(directory: Path) -> dict[str, Any]:
    """`directory`: the brokers' data; the time for a sync on its disk dominates all durable
    work."""
    return {
        "processor": _after_colon("/proc/cpuinfo", "model name") or platform.processor() or "unknown",
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "file_system": _file_system(directory),
        "sync_ms": round(sync_ms(directory), 3),
        "python": platform.python_version(),
        "client": f"confluent-kafka {version('confluent-kafka')}",
        "java": _java(),
    }


def sync_ms(directory: Path) -> float:
    """The median time of fdatasync after an append of 4 KiB."""
    path = directory / "sync-probe"
    took = []
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        for _ in range(_SYNCS):
            os.write(fd, _BLOCK)
            began = time.perf_counter()
            os.fdatasync(fd)
            took.append(time.perf_counter() - began)
    finally:
        os.close(fd)
        path.unlink()
    return statistics.median(took) * 1000


def _after_colon(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return ""


def _file_system(directory: Path) -> str:
    """The type of the file system at the longest mount point above `directory`."""
    found, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, name = line.split()[:3]
        if directory.resolve().is_relative_to(point) and len(point) >= len(found):
            found, kind = point, name
    return kind


def _java() -> str:
    """The first line of `java -version`; empty without Java."""
    if shutil.which("java") is None:
        return ""
    return subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr.partition(
        "\n"
    )[0]
