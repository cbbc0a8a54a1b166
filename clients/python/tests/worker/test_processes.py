"""Jobs in processes: outcomes, and processes that hang, are killed, or end by themselves."""

from __future__ import annotations

import importlib
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from clients.python.tests.worker.plain_jobs import SLOW_START_S, Work, app, in_process
from clients.python.tests.worker.queues import QUICK, until
from kbroker.testing.broker import RunningBroker
from kbroker_client.worker import processes
from kbroker_client.worker.testing import Outcome

pytestmark = pytest.mark.anyio
BREAKS = """
import os
from kbroker_client.worker import App
if "BREAK" in os.environ:
    raise OSError("something of the worker's only")
app = App()

@app.task(queue="breaks-in-process", mode="process", retries=0)
def task(payload: object) -> None: ...
"""


@pytest.fixture
def processes_queue(broker: RunningBroker) -> None:
    broker.create_queue("in-processes", QUICK)


@pytest.mark.usefixtures("processes_queue")
async def test_outcomes(broker: RunningBroker) -> None:
    async with app.testing(broker.bootstrap) as worker:
        for do in ("fail once", "reject", "poison"):
            await in_process.send(Work(do))
        await in_process.send({"undo": 1})
        outcomes = await worker.drain()
    assert {_short(each) for each in outcomes} == {
        ("retried", "OSError", "not there"), ("succeeded", "", ""), ("rejected", "Reject", "no use"),
        ("rejected", "Poison", "1 and 2"), ("rejected", "Unreadable", "payload lacks do"),
    }  # fmt: skip
    (poison,) = (each.reason for each in outcomes if each.reason and "Poison" in each.reason.type)
    assert "in in_process" in poison.traceback


@pytest.mark.usefixtures("processes_queue")
async def test_a_process_does_one_job_after_another(broker: RunningBroker, tmp_path: Path) -> None:
    async with app.testing(broker.bootstrap) as worker:
        for _ in range(20):
            await in_process.send(Work("write", str(tmp_path / "log")))
        await worker.drain()
    pids = {line.split()[0] for line in (tmp_path / "log").read_text().splitlines()}
    assert len((tmp_path / "log").read_text().splitlines()) == 20
    assert 1 <= len(pids) <= 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


@pytest.mark.usefixtures("processes_queue")
async def test_a_job_that_hangs_is_killed(broker: RunningBroker, tmp_path: Path) -> None:
    async with app.testing(broker.bootstrap) as worker:
        await in_process.send(Work("hang", str(tmp_path / "log")))
        outcomes = await worker.drain()
        first, _second = (tmp_path / "log").read_text().splitlines()
        with pytest.raises(ProcessLookupError):
            os.kill(int(first), 0)
    assert [each.outcome for each in outcomes] == ["retried", "succeeded"]
    assert outcomes[0].reason is not None
    assert outcomes[0].reason.type == "JobTimedOut"
    assert 2.0 <= outcomes[0].seconds < 10.0


@pytest.mark.usefixtures("processes_queue")
@pytest.mark.parametrize(
    ("do", "text"), [("die", "SIGKILL"), ("die beside a fork", "SIGKILL"), ("exit", "exit(3)")]
)
async def test_a_process_that_ends(broker: RunningBroker, do: str, text: str) -> None:
    async with app.testing(broker.bootstrap) as worker:
        await in_process.send(Work(do))
        outcomes = await worker.drain()
    assert [each.outcome for each in outcomes] == ["retried", "succeeded"]
    assert outcomes[0].reason is not None
    assert text in outcomes[0].reason.message
    assert "anyio" not in outcomes[0].reason.traceback


@pytest.mark.usefixtures("processes_queue")
async def test_the_start_of_a_process_is_no_part_of_the_job(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SLOW_START_S, "2.5")  # Longer than the timeout.
    async with app.testing(broker.bootstrap) as worker:
        await in_process.send(Work("nothing"))
        (outcome,) = await worker.drain()
        assert outcome.outcome == "succeeded"
        assert outcome.seconds < 2.0


@pytest.mark.usefixtures("processes_queue")
async def test_a_process_that_does_not_start(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SLOW_START_S, "3600")
    monkeypatch.setattr(processes, "START_S", 1.0)
    async with app.testing(broker.bootstrap) as worker:
        await in_process.send(Work("nothing"))
        await until(lambda: worker.statistics()["in-processes"].retried > 0)
        monkeypatch.delenv(SLOW_START_S)
        *failed, last = await worker.drain()
    assert last.outcome == "succeeded"
    text = "the process of the job has not started within 1 s"
    assert {each.reason.message for each in failed if each.reason} == {text}


@pytest.mark.usefixtures("processes_queue")
async def test_a_job_ends_what_it_has_forked(broker: RunningBroker) -> None:
    async with app.testing(broker.bootstrap) as worker:
        await in_process.send(Work("terminate"))
        outcomes = await worker.drain()
    assert [each.outcome for each in outcomes] == ["succeeded"]


@pytest.mark.usefixtures("processes_queue")
async def test_a_fork_that_returns_from_the_job_does_not_count(broker: RunningBroker) -> None:
    async with app.testing(broker.bootstrap) as worker:
        await in_process.send(Work("return twice"))
        outcomes = await worker.drain()
    assert [each.reason.message for each in outcomes if each.reason] == ["from the parent"]


async def test_a_process_that_cannot_import_its_task(
    broker: RunningBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names no line of this package or of the loop's."""
    (tmp_path / "breaks_in_process.py").write_text(BREAKS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "breaks_in_process", raising=False)
    module = importlib.import_module("breaks_in_process")
    monkeypatch.setenv("BREAK", "1")
    broker.create_queue("breaks-in-process", QUICK)
    async with module.app.testing(broker.bootstrap) as worker:
        await module.task.send(1)
        (outcome,) = await worker.drain()
    ended = "the process of the job ended with exit code 1 before the job began"
    message = f"{ended}; the worker's output has its error"
    assert outcome.reason.message == message
    assert f"ProcessDied: {message}; rejected" in caplog.text


def _short(each: Outcome) -> tuple[str, str, str]:
    reason = each.reason
    return (each.outcome, "", "") if reason is None else (
        each.outcome, reason.type.rpartition(".")[2], reason.message
    )  # fmt: skip


@pytest.mark.usefixtures("processes_queue")
async def test_an_idle_process_that_was_killed(broker: RunningBroker, tmp_path: Path) -> None:
    """The next job does not fail for it."""
    log = tmp_path / "log"
    async with app.testing(broker.bootstrap) as worker:
        await in_process.send(Work("write", str(log)))
        await worker.drain()
        pid = int(log.read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        await until(lambda: _has_ended(pid))
        await in_process.send(Work("write", str(log)))
        outcomes = await worker.drain()
    assert [each.outcome for each in outcomes] == ["succeeded"]


def test_a_process_ends_with_a_worker_that_is_killed_while_it_sends_a_job() -> None:
    command = [sys.executable, "-m", "kbroker_client.worker.child"]
    path = os.pathsep.join(each or os.getcwd() for each in sys.path)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, start_new_session=True, env={**os.environ, "PYTHONPATH": path}
    ) as process:
        try:
            process.communicate(struct.pack(">I", 1000) + b"half of it", timeout=30)
            assert process.returncode == -signal.SIGKILL
        finally:
            process.kill()


def _has_ended(pid: int) -> bool:
    """With all of its threads: /proc calls it a zombie before."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # The loop of the worker has waited for it.
        return True
