"""A process that may open no more files, for the tests of storage engines."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest


@pytest.fixture
def no_files() -> Iterator[Callable[[], ExitStack]]:
    """Opens files until the process may open no more; closing the stack closes them."""
    if not Path("/proc/self/fd").exists():
        pytest.skip("counts open files")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as everything:

        def take() -> ExitStack:
            highest = max(map(int, os.listdir("/proc/self/fd")))
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 5, hard))
            everything.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
            taken = everything.enter_context(ExitStack())
            while True:
                try:
                    taken.callback(os.close, os.open("/dev/null", os.O_RDONLY))
                except OSError:
                    return taken

        yield take
