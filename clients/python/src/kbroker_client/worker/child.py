"""The process in which jobs run: python -m kbroker_client.worker.child

Messages are pickles after their length (4 bytes), on standard input and output. What jobs print
goes to standard error. The end of the input means that the worker has died: the process ends at
once, in the middle of a job too, because the job is delivered again.

SIGTERM, SIGINT and SIGHUP are the worker's business: systemd sends them to every process of a
service. What a job forks is its own business, and ended by them.
"""

from __future__ import annotations

import importlib
import logging
import os
import pickle
import queue
import runpy
import signal
import struct
import sys
import threading
from functools import partial
from typing import Any, BinaryIO, Final

from . import forks
from .job import Job
from .policies import Failure, failure_of
from .processes import Hello
from .task import Task

_SIZE: Final = struct.Struct(">I")
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> None:
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    # The worker must see the end of this process, even if what a job has forked lives on.
    for pipe in (requests, answers):
        os.register_at_fork(after_in_child=partial(os.dup2, nothing, pipe.fileno(), inheritable=False))
    for number in _SIGNALS:
        signal.signal(number, _ignore)
    with forks.without(_SIGNALS):
        _work(requests, answers)


def _work(requests: BinaryIO, answers: BinaryIO) -> None:
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests, messages), daemon=True).start()
    hello: Hello = messages.get()
    if hello.log_level is not None:
        logging.basicConfig(level=hello.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    task = _find(hello)
    _answer(answers, None)
    process = os.getpid()
    while True:
        job: Job = messages.get()
        failure = _run(task, job)
        if os.getpid() != process:
            os._exit(0)  # The job has forked this one.
        _answer(answers, failure)


def _ignore(number: int, frame: object) -> None:
    """Not SIG_IGN, which programs that a job starts would inherit."""


def _read(requests: BinaryIO, messages: queue.SimpleQueue[Any]) -> None:
    try:
        while head := requests.read(_SIZE.size):
            messages.put(pickle.loads(requests.read(*_SIZE.unpack(head))))
    finally:  # The last message may be cut off.
        os.killpg(os.getpgid(0), signal.SIGKILL)


def _answer(answers: BinaryIO, failure: Failure | None) -> None:
    data = pickle.dumps(failure)
    answers.write(_SIZE.pack(len(data)) + data)
    answers.flush()


def _run(task: Task[..., Any], job: Job) -> Failure | None:
    try:
        task.run_plain(task.arguments(task.read(job.value), job))
    except BaseException as error:
        return failure_of(error, task.options.reject_on)._replace(error=None)
    return None


def _find(hello: Hello) -> Task[..., Any]:
    sys.path[:] = hello.path
    if hello.module is not None:
        found = vars(importlib.import_module(hello.module))
    else:
        found = runpy.run_path(hello.file or "", run_name="__mp_main__")
    for each in found.values():
        if isinstance(each, Task) and (each.queue, each.name) == (hello.queue, hello.name):
            each.app.bootstrap = hello.bootstrap
            return each
    raise SystemExit(f"{hello.module or hello.file} has no task of the queue {hello.queue} at module level")


if __name__ == "__main__":
    main()
