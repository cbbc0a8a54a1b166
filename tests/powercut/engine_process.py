"""The processes of an engine's power cut: one works under the recorder, one recovers under it, one
opens the remaining state and judges.

    python -m tests.powercut.engine_process work KIND ENGINE DIRECTORY LOG SEED STEPS
    python -m tests.powercut.engine_process recover KIND ENGINE DIRECTORY
    python -m tests.powercut.engine_process judge      requests on stdin, one JSON object a line;
                                                       answers on stdout

KIND is "log", "many" (many logs), "replaced" (a log too) or "state". ENGINE may have options, as in
segment?sync=fdatasync&checkpoint_bytes=0. The judge is a separate process since a corrupt store may
crash it (SIGBUS). The worker is killed at its end, so that no clean close helps the engine.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from kbroker import plugins
from tests.crash import broken_stores
from tests.powercut import engine_script as script
from tests.powercut.recording import write_mark
from tests.powercut.replaced_script import check_replaced, replaced_script, work_on_replaced

SCRIPTS: Mapping[str, Callable[[int, int], Sequence[Any]]] = {
    "log": script.log_script,
    "many": partial(script.log_script, least=20, most=24),
    "replaced": replaced_script,
    "state": script.state_script,
}


def open_store(kind: str, engine: str, directory: Path) -> object:
    name, _, options = engine.partition("?")
    factory = plugins.state_store_factory(name) if kind == "state" else plugins.log_store_factory(name)
    return factory.open(directory, dict(parse_qsl(options)), 0)


def work(kind: str, engine: str, directory: Path, log: Path, seed: int, steps: int) -> None:
    marks = os.open(log, os.O_WRONLY | os.O_APPEND)

    def mark(what: str, place: int, more: Mapping[str, object]) -> None:
        write_mark(marks, json.dumps({what: place + 1, **more}).encode())

    store = open_store(kind, engine, directory)
    for place, step in enumerate(SCRIPTS[kind](seed, steps)):
        mark("begun", place, {})
        more: Mapping[str, object] = {}
        if isinstance(step, script.Step) and step.what == "reopen":
            store.close()
            store = open_store(kind, engine, directory)
        elif kind == "replaced":
            more = work_on_replaced(store, step)
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


def judge(
    kind: str, engine: str, directory: Path, seed: int, steps: int,
    marks: script.Marks, replaced: Sequence[tuple[int, int]],
) -> None:  # fmt: skip
    """Raises AssertionError, or any error of the engine."""
    store = open_store(kind, engine, directory)
    try:
        if kind == "replaced":
            check_replaced(store, replaced_script(seed, steps), marks, replaced)
            script.go_on_with_logs(store)
        elif kind in ("log", "many"):
            script.check_logs(store, SCRIPTS[kind](seed, steps), marks)
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
        replaced = request.pop("replaced", ())
        marks = script.Marks(request.pop("begun"), request.pop("done"), starts)
        try:
            judge(**{**request, "directory": Path(request["directory"])}, marks=marks, replaced=replaced)
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
