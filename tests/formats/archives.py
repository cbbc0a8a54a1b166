"""Archives of data directories. It needs no kbroker: an earlier version writes some of them."""

from __future__ import annotations

import tarfile
from pathlib import Path


def archive(target: Path, *contents: Path) -> None:
    """Pack files and folders under their own names."""
    with tarfile.open(target, "w:xz", preset=9) as tar:
        for each in contents:
            tar.add(each, arcname=each.name, filter=_kept)


def _kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Without the owner, and without RocksDB's own log, which is not read again and contains the
    machine's name."""
    if Path(entry.name).name.startswith("LOG"):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
