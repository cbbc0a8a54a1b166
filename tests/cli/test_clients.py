"""How the commands behave when a broker disappears, for a while or permanently."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from kbroker.cli.clients import ClientErrors
from kbroker.cli.exits import CommandFailed
from kbroker.cli.params import Address, Bootstrap
from kbroker.client.broker_process import free_port
from kbroker.client.rpc import BrokerUnreachable
from kbroker.client.security import PLAINTEXT
from kbroker.testing.broker import open_test_broker
from tests.client.fake_broker import fake_broker

ALL_DOWN = KafkaError(KafkaError._ALL_BROKERS_DOWN)


def at(port: int) -> Bootstrap:
    return Bootstrap(Address("127.0.0.1", port), PLAINTEXT)


def test_a_broker_that_is_back_is_forgiven() -> None:
    with fake_broker(lambda *_: None) as broker:
        errors = ClientErrors(at(broker.port), patience_s=0)
        errors(ALL_DOWN)
        errors.check()
    errors.check()


def test_a_broker_that_stays_away_is_reported_after_a_while() -> None:
    patient, hasty = (ClientErrors(at(free_port()), patience_s=seconds) for seconds in (600, 0))
    for errors in (patient, hasty):
        errors.check()
        errors(ALL_DOWN)
    patient.check()
    with pytest.raises(BrokerUnreachable):
        hasty.check()


def test_a_fatal_error_ends_the_command() -> None:
    errors = ClientErrors(at(free_port()))
    errors(KafkaError(KafkaError._FATAL, "fenced", fatal=True))
    with pytest.raises(CommandFailed, match="fenced"):
        errors.check()


def test_consume_goes_on_after_a_restart_of_the_broker(tmp_path: Path) -> None:
    with open_test_broker() as broker:
        broker.create_topic("t")
        kbroker = [sys.executable, "-m", "kbroker"]
        (tmp_path / "lines").write_text("one\n")
        produce = [*kbroker, "produce", "t", str(tmp_path / "lines"), "-b", broker.bootstrap]
        consume = [*kbroker, "consume", "t", "-n", "2", "-b", broker.bootstrap]
        with subprocess.Popen(consume, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            subprocess.run(produce, check=True, capture_output=True)
            assert process.stdout.readline() == "one\n"
            broker.kill()
            broker.restart()
            subprocess.run(produce, check=True, capture_output=True)
            assert process.stdout.readline() == "one\n"
            assert process.wait(60) == 0
