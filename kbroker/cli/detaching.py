"""`kbroker start --detach`: the broker runs in a process of its own, without a terminal.

The command forks before the broker's modules are imported, so there are no threads and no open
files yet. Its own process waits until the other one is ready or has ended.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Never

import click

from kbroker.cli.exits import CommandFailed, say

_SHOWN_BYTES = 4000


def log_file_of(data_dir: Path) -> Path:
    """Beside the data directory: a copy of the directory has no log, and a full disk names it."""
    path = data_dir.absolute()
    return path.with_name(f"{path.name}.log")


def detach(log_file: Path) -> Callable[[str], None]:
    """Return in a new process, which leads a session of its own and appends its output to
    `log_file`. It must call the returned function with the ready line, once.

    The caller's process prints that line and ends with exit code 0. If the new process ends before,
    the caller's prints what was logged and ends with the same exit code. Raises CommandFailed.
    """
    try:
        log = os.open(log_file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o640)
    except OSError as error:
        raise CommandFailed(f"--detach: the log {log_file} cannot be opened: {error.strerror}") from error
    begins_at = os.fstat(log).st_size
    readable, writable = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writable)
        _wait(pid, readable, log, begins_at, log_file)
    os.close(readable)
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for number, file in enumerate((null, log, log)):
        os.dup2(file, number)
    os.close(null)
    os.close(log)

    def tell(line: str) -> None:
        with open(writable, "w") as pipe:
            pipe.write(line)

    return tell


def _wait(pid: int, readable: int, log: int, begins_at: int, log_file: Path) -> Never:
    try:
        with open(readable) as pipe:
            line = pipe.read()
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGTERM)
        raise
    if line:
        click.echo(line)
        say(f"process {pid} serves in the background and logs to {log_file}; `kill {pid}` stops it")
        sys.exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    size_bytes = os.fstat(log).st_size - begins_at
    shown = min(size_bytes, _SHOWN_BYTES)
    click.echo(os.pread(log, shown, begins_at + size_bytes - shown), nl=False, err=True)
    sys.exit(code if code >= 0 else 128 - code)
