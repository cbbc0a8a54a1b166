"""The processes of an engine's power cut: one works under the recorder, one recovers under it, one
opens the remaining state and judges.

    python -m tests.powercut.engine_process work KIND ENGINE DIRECTORY LOG SEED STEPS
    python -m tests.powercut.engine_process recover KIND ENGINE DIRECTORY
    python -m tests.powercut.engine_process judge      requests on stdin, one JSON object a line;
                                                       answers on stdout

KIND is "log" or "state"; ENGINE may have options, as in segment?sync=fdatasync&checkpoint_bytes=0.
The judge is a separate process since a corrupt store may crash it (SIGBUS). The worker is killed at
its end, so that no clean close helps the engine.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qsl

from kbroker import plugins
from tests.crash import broken_stores
from tests.powercut import engine_script as script
from tests.powercut.recording import write_mark


def open_store(kind: str, engine: str, directory: Path) -> object:
    name, _, options = engine.partition("?")
    factory = plugins.log_store_factory(name) if kind == "log" else plugins.state_store_factory(name)
    return factory.open(directory, dict(parse_qsl(options)), 0)


def work(kind: str, engine: str, directory: Path, log: Path, seed: int, steps: int) -> None:
    marks = os.open(log, os.O_WRONLY | os.O_APPEND)

    def mark(what: str, place: int, more: dict[str, int]) -> None:
        write_mark(marks, json.dumps({what: place + 1, **more}).encode())

    store = open_store(kind, engine, directory)
    for place, step in enumerate(
        script.log_script(seed, steps) if kind == "log" else script.state_script(seed, steps)
    ):
        mark("begun", place, {})
        more: dict[str, int] = {}
        if isinstance(step, script.Step) and step.what == "reopen":
            store.close()
            store = open_store(kind, engine, directory)
        elif isinstance(step, script.Step):
            more = script.work_on_logs(store, step)
        else:
            script.work_on_state(store, step)
        mark("done", place, more)
    os.kill(os.getpid(), signal.SIGKILL)


def recover(kind: str, engine: str, directory: Path) -> None:
    """Only open the state that a power cut left, so that the next cut can hit the recovery."""
    store = open_store(kind, engine, directory)
    assert store is not None
    os.kill(os.getpid(), signal.SIGKILL)


def judge(kind: str, engine: str, directory: Path, seed: int, steps: int, marks: script.Marks) -> None:
    """Raises AssertionError, or any error of the engine."""
    store = open_store(kind, engine, directory)
    try:
        if kind == "log":
            script.check_logs(store, script.log_script(seed, steps), marks)
            script.go_on_with_logs(store)
        else:
            script.check_state(store, script.state_script(seed, steps), marks)
            script.go_on_with_state(store)
    finally:
        store.close()


def judge_requests() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        starts = {int(number): start for number, start in request.pop("starts").items()}
        marks = script.Marks(request.pop("begun"), request.pop("done"), starts)
        try:
            judge(**{**request, "directory": Path(request["directory"])}, marks=marks)
            answer = ""
        except BaseException as error:  # any error at all is the verdict
            answer = "".join(traceback.format_exception(error))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


COMMANDS: dict[str, Callable[..., None]] = {
    "work": lambda kind, engine, directory, log, seed, steps: work(
        kind, engine, Path(directory), Path(log), int(seed), int(steps)
    ),
    "recover": lambda kind, engine, directory: recover(kind, engine, Path(directory)),
    "judge": judge_requests,
}

if __name__ == "__main__":
    broken_stores.install()
    COMMANDS[sys.argv[1]](*sys.argv[2:])
