"""The recorder itself."""

from __future__ import annotations

import ctypes
import subprocess

from tests.powercut.recording import recorder_library


def test_only_functions_of_libc_are_exported() -> None:
    """Any other name could stand in for one of the recorded process."""
    table = subprocess.run(
        ["nm", "-D", "--defined-only", str(recorder_library())], capture_output=True, text=True, check=True
    )
    names = [line.split()[-1] for line in table.stdout.splitlines()]
    libc = ctypes.CDLL(None)
    assert {"write", "fsync", "renameat2"} <= set(names)
    assert [name for name in names if not hasattr(libc, name)] == []
