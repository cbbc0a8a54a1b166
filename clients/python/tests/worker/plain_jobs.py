"""An app whose plain functions run in processes; imported by these processes too. Each payload says
what the job does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from dataclasses import dataclass

from kbroker_client.worker import App, Job, Reject

app = App()
SLOW_START_S = "KBROKER_TEST_SLOW_START_S"
time.sleep(float(os.environ.get(SLOW_START_S, "0")))


class Poison(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")  # Cannot be unpickled.


@dataclass
class Work:
    do: str
    file: str = ""


def end_a_fork() -> None:
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,))
    process.start()
    process.terminate()
    process.join(1)
    try:
        assert process.exitcode == -signal.SIGTERM
    finally:
        process.kill()
        process.join()


@App().task(queue="in-processes", mode="process")
def of_another_app(work: Work) -> None:
    raise Reject("the worker is not that of this app")


@app.task(queue="in-processes", concurrency=2, timeout=2.0, reject_on=(Poison,), mode="process")
def in_process(work: Work, job: Job) -> None:
    """Prints, to where the worker's output must not be."""
    print("a job prints", "x" * 200_000)
    sys.stderr.write("y" * 200_000 + "\n")
    match work.do:
        case "write":
            with open(work.file, "a") as file:
                file.write(f"{os.getpid()} {job.attempt}\n")
        case "fail once" if job.attempt == 1:
            raise OSError("not there")
        case "reject":
            raise Reject("no use")
        case "poison":
            raise Poison(1, 2)
        case "hang":
            with open(work.file, "a") as file:
                file.write(f"{os.getpid()}\n")
            if job.attempt == 1:
                time.sleep(3600)
        case "die" if job.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        case "die beside a fork" if job.attempt == 1:
            multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,)).start()
            os.kill(os.getpid(), signal.SIGKILL)
        case "return twice":
            if pid := os.fork():
                os.waitpid(pid, 0)
                raise Reject("from the parent")
        case "terminate":
            end_a_fork()
        case "exit" if job.attempt == 1:
            sys.exit(3)
