"""Processes that a job forks, with multiprocessing for instance, have Python's own handlers of the
signals that the worker handles.

A forked process inherits handlers, and the descriptor through which the loop hears of signals. With
them `Process.terminate()` would not end it, and would drain the worker instead.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

_handled: Final[set[signal.Signals]] = set()
_local = threading.local()
_DEFAULTS: Final[Mapping[signal.Signals, Any]] = {
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
    signal.SIGHUP: signal.SIG_DFL,
}


@contextmanager
def without(numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Processes that are forked meanwhile are without this process's handlers of these signals."""
    _handled.update(numbers)
    try:
        yield
    finally:
        _handled.difference_update(numbers)


def _before() -> None:
    """A signal that comes to the new process too early would be lost."""
    _local.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _handled)


def _in_parent() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _local.mask)


def _in_child() -> None:
    if _handled:
        signal.set_wakeup_fd(-1)
    for number in _handled:
        signal.signal(number, _DEFAULTS[number])
    _in_parent()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
