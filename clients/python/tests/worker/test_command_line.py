"""`kbroker-worker run`: signals, a limit for the drain, reloading, and its refusals."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from kbroker.client.broker_process import free_port
from kbroker.testing.broker import RunningBroker
from kbroker_client.worker import App
from kbroker_client.worker.cli import main
from tests.terminals import in_terminal

ROOT = Path(__file__).parents[4]
MODULE = """
import anyio, sys, time
from pathlib import Path
from kbroker_client.worker import App, Job
app = App()
log = Path({log!r})

def note(*words):
    with log.open("a") as file:
        print(*words, file=file)

@app.task(queue={queue!r}, concurrency=4)
async def task(seconds, job):
    note("begin", job.attempt)
    try:
        await anyio.sleep(seconds)
        note("end", job.attempt)
    except anyio.get_cancelled_exc_class():
        note("cancelled", job.attempt)
        raise
"""
INTERRUPTED = """
from pathlib import Path
from kbroker_client.worker import App
app = App()

@app.task(queue={queue!r}, retries=0)
KIND task(number, job):
    with Path({log!r}).open("a") as file:
        print("end" if number else "interrupted", job.attempt, file=file)
    if not number:
        raise KeyboardInterrupt
"""
THREADS = """
@app.task(queue={queue!r} + "-threads")
def in_thread(seconds, job):
    note("begin", job.attempt)
    time.sleep(seconds)
"""
FORKS = """
import multiprocessing, signal

@app.task(queue={queue!r} + "-threads")
def in_thread(seconds):
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,))
    process.start()
    process.terminate()
    process.join(5)
    note("ended", process.exitcode == -signal.SIGTERM)
    process.kill()
"""
PROCESSES = """
from kbroker_client.worker import prometheus

@app.task(queue={queue!r} + "-processes", mode="process", retries=0)
def in_process(seconds):
    task.send_blocking(seconds)

prometheus.install(app, port=PORT)
"""
STUBBORN = """
async def stubborn(seconds, job):
    note("begin", job.attempt)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            await anyio.sleep(0.1)
        except anyio.get_cancelled_exc_class():
            time.sleep(0.01)

task.function = stubborn
"""
METRICS = """
from kbroker_client.worker import prometheus
prometheus.install(app, port=PORT)

@app.task(queue={queue!r} + "-process", mode="process")
def in_process(seconds, job):
    note("in a process", job.attempt)
"""


class Program:
    """A folder with a module of jobs, and the workers that run there."""

    def __init__(self, folder: Path, queue: str, broker: RunningBroker) -> None:
        self.folder, self.queue, self.broker = folder, queue, broker
        self.log = folder / "log"
        self.log.touch()
        self.write(MODULE)

    def write(self, text: str) -> None:
        (self.folder / "jobs.py").write_text(text.format(log=str(self.log), queue=self.queue))

    def send(self, seconds: float, queue: str = "") -> None:
        """One job."""
        app = App(self.broker.bootstrap)

        @app.task(queue=queue or self.queue)
        async def task(payload: float) -> None: ...

        task.send_blocking(seconds)

    @contextmanager
    def worker(
        self,
        *arguments: str,
        command: Sequence[str] = ("-m", "kbroker_client.worker", "run", "jobs:app"),
        start_new_session: bool = False,
    ) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(
            [sys.executable, *command, *arguments],
            cwd=self.folder, env=self.environment(), stderr=subprocess.PIPE, text=True,
            start_new_session=start_new_session,
        ) as process:  # fmt: skip
            try:
                yield process
            finally:
                process.kill()

    def environment(self) -> dict[str, str]:
        path = f"{ROOT}:{ROOT / 'clients' / 'python' / 'src'}"
        return {**os.environ, "PYTHONPATH": path, "KBROKER_BOOTSTRAP": self.broker.bootstrap}

    def wait_for(self, *lines: str) -> None:
        def found() -> bool:
            return sorted(self.log.read_text().splitlines()) == sorted(lines)

        _wait(found, self.log.read_text)


def _wait(condition: Callable[[], bool], state: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, state()
        time.sleep(0.02)


@pytest.fixture
def program(tmp_path: Path, queue: str, broker: RunningBroker) -> Program:
    return Program(tmp_path, queue, broker)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_running_jobs_end_after_a_signal(program: Program, loop: str, number: int) -> None:
    program.send(1.0)
    with program.worker("--loop", loop) as worker:
        program.wait_for("begin 1")
        worker.send_signal(number)
        assert worker.wait(10) == 0
        program.send(0)
        program.wait_for("begin 1", "end 1")
        assert worker.stderr is not None
        text = worker.stderr.read()
    assert f"worker ready, queues: {program.queue}" in text
    assert re.search(rf"waiting up to 30 s for running jobs \(1\): {program.queue}-0-0 for \d s\n", text)
    assert text.splitlines()[-1].endswith("worker ended")
    assert "Traceback" not in text


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_job_that_outlasts_the_drain_is_released(program: Program, loop: str) -> None:
    program.send(3600)
    program.send(0.2)
    with program.worker("--loop", loop, "--drain", "1") as worker:
        program.wait_for("begin 1", "begin 1", "end 1")
        started = time.monotonic()
        worker.terminate()
        assert worker.wait(10) == 0
        assert 1.0 <= time.monotonic() - started < 6.0
    program.wait_for("begin 1", "begin 1", "end 1", "cancelled 1")
    with program.worker("--loop", loop):
        program.wait_for("begin 1", "begin 1", "end 1", "cancelled 1", "begin 2")


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_job_that_refuses_to_end_does_not_hold_up_the_end(program: Program, loop: str) -> None:
    program.write(MODULE + STUBBORN)
    program.send(3600)
    with program.worker("--loop", loop, "--drain", "0.2") as worker:
        program.wait_for("begin 1")
        worker.terminate()
        assert worker.wait(20) == 0
        assert worker.stderr is not None
        text = worker.stderr.read()
    assert "1 jobs go on although they were cancelled; the worker ends without them" in text


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_an_interrupt_before_the_worker_is_ready(program: Program, loop: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        with program.worker("--loop", loop, "-b", address) as worker:
            mute.settimeout(30)
            with mute.accept()[0] as connection:
                assert connection.recv(1)
                worker.send_signal(signal.SIGINT)
                assert worker.wait(10) == 128 + signal.SIGINT
            assert worker.stderr is not None
            text = worker.stderr.read()
    assert text.endswith("interrupted before the worker was ready\n")
    assert text.count("\n") == 1, text


def test_a_closed_terminal_is_an_orderly_stop(program: Program, tmp_path: Path) -> None:
    program.send(1.0)
    log = tmp_path / "stderr"
    command = [sys.executable, "-m", "kbroker_client.worker", "run", "jobs:app"]
    environment = {**program.environment(), "PYTHONPATH": f"{tmp_path}:{program.environment()['PYTHONPATH']}"}
    with in_terminal(command, log, environment) as worker:
        program.wait_for("begin 1")
        os.close(worker.terminal)
        assert worker.wait() == 0
    program.wait_for("begin 1", "end 1")
    text = log.read_text()
    assert "SIGHUP: taking no more jobs" in text
    assert text.splitlines()[-1].endswith("worker ended")


def test_without_a_terminal_a_worker_outlives_sighup(program: Program, broker: RunningBroker) -> None:
    """So does the process of a job, to which systemd may send it too."""
    broker.create_queue(f"{program.queue}-process")
    program.write(MODULE + METRICS.replace("PORT", str(free_port())))
    program.send(0, f"{program.queue}-process")
    with program.worker(start_new_session=True) as worker:
        program.wait_for("in a process 1")
        children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
        for process in (*map(int, children), worker.pid):
            os.kill(process, signal.SIGHUP)
        assert worker.stderr is not None
        assert any("SIGHUP: a worker has nothing to read again" in line for line in worker.stderr)
        program.send(0, f"{program.queue}-process")
        program.wait_for("in a process 1", "in a process 1")
        again = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
        assert again == children
        worker.terminate()
        assert worker.wait(10) == 0


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("kind", ["async def", "def"])
def test_a_job_that_raises_keyboard_interrupt_fails(program: Program, loop: str, kind: str) -> None:
    """Ctrl-C is a signal that the worker handles, so this one is the job's own."""
    program.write(INTERRUPTED.replace("KIND", kind))
    program.send(0)
    program.send(1)
    with program.worker("--loop", loop) as worker:
        program.wait_for("interrupted 1", "end 1")
        worker.terminate()
        assert worker.wait(10) == 0
        assert worker.stderr is not None
        text = worker.stderr.read()
    assert re.search(r"s: KeyboardInterrupt.*; rejected$", text, re.MULTILINE), text
    assert "Traceback" not in text


@pytest.mark.parametrize("option", [(), ("--reload",)])
def test_a_second_signal_ends_at_once(program: Program, option: Sequence[str]) -> None:
    program.send(3600)
    with program.worker(*option) as worker:
        program.wait_for("begin 1")
        worker.terminate()
        assert worker.stderr is not None
        for line in worker.stderr:
            if "SIGTERM: taking no more jobs" in line:
                break
        worker.terminate()
        assert worker.wait(10) == 128 + signal.SIGTERM
    program.wait_for("begin 1")


def test_a_thread_does_not_hold_up_the_end(program: Program, broker: RunningBroker) -> None:
    broker.create_queue(f"{program.queue}-threads")
    program.write(MODULE + THREADS)
    program.send(3600, f"{program.queue}-threads")
    with program.worker("--drain", "0.2", "--queue", f"{program.queue}-threads") as worker:
        program.wait_for("begin 1")
        worker.terminate()
        assert worker.wait(10) == 0
        assert worker.stderr is not None
        text = worker.stderr.read()
    assert "the worker ends without the threads that continue (1)" in text


def test_only_a_running_worker_serves_metrics(program: Program, broker: RunningBroker) -> None:
    """Processes of jobs, and programs that send, import the module too. The port is free again
    when the worker has ended."""
    broker.create_queue(f"{program.queue}-process")
    port = free_port()
    program.write(MODULE + METRICS.replace("PORT", str(port)))
    program.send(0, f"{program.queue}-process")
    with program.worker() as worker:
        program.wait_for("in a process 1")
        outcome = f'kbroker_worker_jobs_total{{outcome="succeeded",queue="{program.queue}-process"}} 1.0'
        _wait(lambda: outcome in _read(port), lambda: _read(port))
        sender = [sys.executable, "-c", "import jobs; jobs.task.send_blocking(0)"]
        subprocess.run(sender, cwd=program.folder, env=program.environment(), check=True, timeout=30)
        program.wait_for("in a process 1", "begin 1", "end 1")
        with program.worker() as second:
            assert second.wait(30) == 1
            assert second.stderr is not None
            assert second.stderr.read() == (
                f"worker: metrics cannot be served on port {port}: Address already in use; "
                "each worker of a host needs a port of its own\n"
            )
        worker.terminate()
        assert worker.wait(10) == 0
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))


def _read(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read(), "utf-8")


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_concurrency_without_end(program: Program, loop: str) -> None:
    program.send(0)
    with program.worker("--loop", loop, "--concurrency", "99999999999"):
        program.wait_for("begin 1", "end 1")


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_process_that_a_job_forks_has_signals_of_its_own(
    program: Program, broker: RunningBroker, loop: str
) -> None:
    broker.create_queue(f"{program.queue}-threads")
    program.write(MODULE + FORKS)
    program.send(0, f"{program.queue}-threads")
    with program.worker("--loop", loop) as worker:
        program.wait_for("ended True")
        program.send(0)
        program.wait_for("ended True", "begin 1", "end 1")  # It has not heard of that signal.
        worker.terminate()
        assert worker.wait(10) == 0
        assert worker.stderr is not None
        assert worker.stderr.read().count("SIGTERM") == 1


@pytest.mark.parametrize("command", [("-m", "kbroker_client.worker", "run", "jobs:app"), ("jobs.py",)])
def test_a_process_imports_its_workers_module(
    program: Program, broker: RunningBroker, command: Sequence[str]
) -> None:
    """It sends to the worker's broker, serves no metrics, and is no second worker."""
    broker.create_queue(f"{program.queue}-processes")
    text = (MODULE + PROCESSES).replace("PORT", str(free_port()))
    if command == ("jobs.py",):
        program.write(text + "app.run()\n")
        arguments = []
    else:
        program.write(text.replace("App()", "App('127.0.0.1:1')"))
        arguments = ["-b", broker.bootstrap]
    program.send(0, f"{program.queue}-processes")
    with program.worker(*arguments, command=command) as worker:
        program.wait_for("begin 1", "end 1")
        worker.terminate()
        assert worker.wait(10) == 0


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import textwrap\napp.task(queue={queue!r}, mode='process')(textwrap.dedent)",
         "worker: dedent is to run in a process, which looks for it at the top level of textwrap: define a "
         "function of your own with `def` and @app.task there"),
        ("class Jobs:\n    @app.task(queue={queue!r}, mode='process')\n    def do(payload): ...\n",
         "worker: Jobs.do is to run in a process, which looks for it at the top level of jobs: define a "
         "function of your own with `def` and @app.task there"),
    ],
)  # fmt: skip
def test_tasks_that_no_process_could_find(program: Program, text: str, line: str) -> None:
    program.write("from kbroker_client.worker import App\napp = App()\n" + text)
    with program.worker() as worker:
        assert worker.wait(30) == 1
        assert worker.stderr is not None
        assert worker.stderr.read().splitlines()[-1] == line


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_killed_worker_loses_no_job(program: Program, loop: str) -> None:
    program.send(2)
    with program.worker("--loop", loop) as worker:
        program.wait_for("begin 1")
        worker.kill()
    with program.worker("--loop", loop):
        program.wait_for("begin 1", "begin 2", "end 2")


def test_reload(program: Program) -> None:
    (program.folder / "loop.py").symlink_to("loop.py")
    with program.worker("--reload") as worker:
        program.send(0)
        program.wait_for("begin 1", "end 1")
        program.write(MODULE.replace('"begin"', '"new"'))
        program.send(0)
        _wait(lambda: len(program.log.read_text().splitlines()) == 4, program.log.read_text)
        # Either worker may have done it.
        program.write("this is no python")
        assert worker.stderr is not None
        for line in worker.stderr:
            if "it has ended, and starts again when a .py file changes" in line:
                break
        program.write(MODULE.replace('"begin"', '"newer"'))
        program.send(0)
        _wait(lambda: "newer 1" in program.log.read_text(), program.log.read_text)
        worker.terminate()
        assert worker.wait(10) == 0


def test_a_reloading_worker_ends_with_its_terminal(program: Program) -> None:
    program.send(3600)
    with program.worker("--reload", "--drain", "0") as worker:
        program.wait_for("begin 1")
        worker.send_signal(signal.SIGHUP)
        assert worker.wait(10) == 0
        program.wait_for("begin 1", "cancelled 1")


@pytest.mark.parametrize(
    ("arguments", "line", "code"),
    [
        (["nowhere:app"], "there is no module nowhere here or in the environment", 2),
        (["jobs:tasks"], "jobs has no App tasks; it has jobs:app", 2),
        ([":app"], "':app' is not MODULE:APP, such as shop.tasks:app", 2),
        (["jobs.py"], "'jobs.py' is not MODULE:APP, such as jobs:app", 2),
        (["./shop/jobs.py:queues"], "'./shop/jobs.py:queues' is not MODULE:APP, such as shop.jobs:queues", 2),
        (["jobs:app", "--queue", "mails"], "worker: no task has the queue mails", 1),
        (["jobs:app", "-b", "127.0.0.1:1"], "worker: cannot connect to 127.0.0.1:1", 1),
        (["jobs:app", "-b", "amqp://guest@host//"], "'amqp://guest@host//' is not an address of a broker", 2),
        (["jobs:app", "--concurrency", "0"], "'0' is not a number of at least 1", 2),
        (["jobs:app", "--rel"], "unrecognized arguments: --rel", 2),
        (["jobs:app", "--drain=-1"], "'-1' is not a number of seconds", 2),
    ],
)
def test_refusals(program: Program, arguments: Sequence[str], line: str, code: int) -> None:
    program.write(MODULE.replace("App()", "App(connect_timeout=0)"))
    done = subprocess.run(
        [sys.executable, "-m", "kbroker_client.worker", "run", *arguments],
        cwd=program.folder, env=program.environment(), capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert line in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == code


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("int(7)\nint('x')\n", ["Traceback", '  File "{file}", line 2, in <module>', "    int('x')"]),
        ("x = (", ['  File "{file}", line 1', "    x = ("]),
    ],
)
def test_a_module_that_cannot_be_imported(program: Program, text: str, lines: Sequence[str]) -> None:
    """The traceback begins in the module."""
    program.write(text)
    with program.worker() as worker:
        assert worker.wait(30) == 1
        assert worker.stderr is not None
        found = worker.stderr.read().splitlines()
    for line, expected in zip(found, lines, strict=False):
        assert line.startswith(expected.format(file=program.folder / "jobs.py"))
    assert found[-1] == "python -m kbroker_client.worker: jobs cannot be imported"


def test_a_queue_that_is_missing(program: Program) -> None:
    program.queue = "not-there"
    program.write(MODULE)
    with program.worker() as worker:
        assert worker.wait(30) == 1
        assert worker.stderr is not None
        assert worker.stderr.read().splitlines()[-1] == (
            "worker: the queue not-there does not exist: kbroker queues create not-there --prefetch 4"
        )


def test_it_is_a_command_of_kbroker(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    def kbroker(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "kbroker", "worker", "run", *arguments],
            cwd=program.folder, env=program.environment(), capture_output=True, text=True, timeout=30,
        )  # fmt: skip
        return done.returncode, done.stderr

    assert kbroker("nowhere") == (
        2, "kbroker worker: there is no module nowhere here or in the environment\n",
    )  # fmt: skip
    assert kbroker("jobs:app", "--queue", "mails", "--concurrency", "3", "--drain", "2.5") == (
        1, f"kbroker: no task has the queue mails; the app's queues are {program.queue}\n",
    )  # fmt: skip
    program.write(MODULE.replace("App()", "App(connect_timeout=0)"))
    code, text = kbroker("jobs:app", "-b", "127.0.0.1:1", "--loop", "trio")
    assert (code, "kbroker: cannot connect to 127.0.0.1:1" in text) == (1, True)
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    assert "--reload" in capsys.readouterr().out


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from kbroker.cli import run

    monkeypatch.setitem(sys.modules, "kbroker_client.worker.cli", None)
    assert run(["worker", "run", "jobs:app"]) == 1
    assert capsys.readouterr().err == (
        "kbroker: workers need the package kbroker-client: in a checkout, pip install ./clients/python\n"
    )
