"""`--reload`: a worker in a process of its own, which is started again when a source file changes.

For development: it looks at the times of all .py files a few times a second. A worker that has
ended, because of a mistake in the program for instance, is started again at the next change.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

_LOOK_S: Final = 0.3
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "venv", "site-packages"})


def run_and_reload(arguments: Sequence[str], folder: str) -> int:
    """Until SIGTERM, SIGINT, or the SIGHUP of a terminal that is closed. Returns the exit code of
    the last worker."""
    stopping = threading.Event()
    worker: subprocess.Popen[bytes] | None = None

    def end(number: int, frame: object) -> None:
        if stopping.is_set() and worker is not None:  # The worker's second signal.
            worker.terminate()
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP.
            signal.signal(number, end)
    before = _times(folder)
    worker, has_ended = _start(arguments), False
    while not stopping.wait(_LOOK_S):
        if worker.poll() is not None and not has_ended:
            has_ended = True
            print("worker: it has ended, and starts again when a .py file changes", file=sys.stderr)
        now = _times(folder)
        if now == before:
            continue
        changed = sorted(path for path in now.keys() | before.keys() if now.get(path) != before.get(path))
        print(f"worker: {os.path.relpath(changed[0], folder)} has changed: starting again", file=sys.stderr)
        before = now
        _stop(worker)
        worker, has_ended = _start(arguments), False
    return _stop(worker)


def _start(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    """In a session of its own: Ctrl-C comes to it from here, once."""
    command = [sys.executable, "-m", "kbroker_client.worker", *arguments]
    return subprocess.Popen(command, start_new_session=True)


def _stop(worker: subprocess.Popen[bytes]) -> int:
    """The worker drains within its own limit."""
    worker.terminate()
    return worker.wait()


def _times(folder: str) -> Mapping[str, int]:
    return dict(_stamps(folder))


def _stamps(folder: str) -> Iterator[tuple[str, int]]:
    for place, folders, files in os.walk(folder):
        folders[:] = [each for each in folders if each not in _SKIPPED and not each.startswith(".")]
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(place, name)
                try:
                    yield path, os.stat(path).st_mtime_ns
                except OSError:
                    continue  # An editor has just replaced it, or it is a link to nowhere.
