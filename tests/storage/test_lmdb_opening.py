"""Sub-databases that are opened while another thread writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kbroker.storage.lmdb_environment import open_environment


def test_opening_a_sub_database_waits_for_a_writer_without_the_gil(tmp_path: Path) -> None:
    """A broker stood still for good when a read of an older segment met a commit: the reader waited with the GIL held for LMDB's writer
    lock, and the writer, between two calls of its transaction, for the GIL."""
    env = open_environment(tmp_path, read_only=False, map_bytes=1 << 30, max_handles=128)
    with env.write() as transaction:
        transaction.put(b"key", b"was there", db=env.handle_in(transaction, b"s1"))
    env.close()
    command = [sys.executable, "-m", "tests.storage.lmdb_opening", str(tmp_path)]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout == "b'was there'\nb'written'\n"
