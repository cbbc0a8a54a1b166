"""Ctrl-C while the client library runs, and while a process starts: it causes no traceback and is
never lost."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, Popen

import pytest
from confluent_kafka import KafkaError, Message

from kbroker.cli import produce as produce_command
from kbroker.cli.demo import command as demo
from kbroker.cli.demo.team import Team
from kbroker.cli.demo.view import PlainView
from kbroker.cli.exits import INTERRUPTED
from kbroker.cli.interrupts import Deferred
from kbroker.cli.produce import ProduceCounts
from kbroker.client import admin
from kbroker.testing.broker import RunningBroker
from tests.cli.conftest import PATIENCE_S, Command


@pytest.fixture
def _ctrl_c_interrupts() -> Iterator[None]:
    # background jobs ignore it, and children would inherit that
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


pytestmark = pytest.mark.usefixtures("_ctrl_c_interrupts")


class Interrupted(ProduceCounts):
    """Ctrl-C arrives while the library reports the first record as confirmed."""

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        super().__call__(error, message)
        if self.confirmed == 1:
            signal.raise_signal(signal.SIGINT)
            time.monotonic()  # a handler runs before the next step at the latest


def test_a_signal_waits_for_the_end_of_the_block() -> None:
    signals, reached = Deferred().install(), []

    def work() -> None:
        with signals:
            signal.raise_signal(signal.SIGINT)
            reached.append("the end of the block")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert reached == ["the end of the block"]
    with signals:
        reached.append("no signal is left")
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    signals.remove()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ignored_signals_stay_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signals = Deferred().install()
    with signals:
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signals.remove()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_produce_is_interrupted_in_a_callback(
    command: Command, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_command, "ProduceCounts", Interrupted)
    (tmp_path / "lines").write_text("one\ntwo\n")
    ran = command("produce", topic, tmp_path / "lines")
    (line,) = ran.err.strip().splitlines()
    assert (ran.code, f" records confirmed in {topic}, 0 failed, " in line) == (INTERRUPTED, True)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_produce_counts_what_was_confirmed_while_it_waited_for_input(
    broker: RunningBroker, topic: str
) -> None:
    """Regression: it counted up to the last line that it had read, so that a user sent the rest
    again."""
    command = [sys.executable, "-m", "kbroker", "produce", topic, "-b", broker.bootstrap]
    with Popen(command, stdin=PIPE, stderr=PIPE, text=True) as process, broker.connect() as connection:
        assert process.stdin is not None
        process.stdin.write("one\ntwo\n")
        process.stdin.flush()
        deadline = time.monotonic() + PATIENCE_S
        while sum(admin.list_offsets(connection, topic, range(3), admin.LATEST).values()) != 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(0.5)  # for the broker's answer
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, f"2 records confirmed in {topic}, 0 failed, " in err) == (
        INTERRUPTED,
        True,
    ), err


def test_the_demo_is_interrupted_in_a_callback(
    broker: RunningBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_command, "ProduceCounts", Interrupted)
    monkeypatch.setattr(demo, "TOPIC", topic)
    signals = Deferred().install()
    with pytest.raises(KeyboardInterrupt):
        demo._produce(broker.client_settings(), 10, PlainView(10, print), signals)
    signals.remove()


def test_a_consumer_that_starts_does_not_take_ctrl_c(
    broker: RunningBroker, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its interpreter begins with the signal blocked; it leaves its group and ends as if there had
    been no signal."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with Team(broker.client_settings(), topic, topic, Deferred()) as team:
        team.hire()
        (process,) = multiprocessing.active_children()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
    process.join(PATIENCE_S)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
    assert (process.exitcode, capfd.readouterr().err) == (0, "")
