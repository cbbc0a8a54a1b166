"""One broker for all tests of commands, and a way to run a command and get its output."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import click
import pytest

from kbroker.cli import cli, run
from kbroker.testing.broker import RunningBroker, open_test_broker
from tests.brokers import require_engine

PATIENCE_S = 30


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.lines]


Command = Callable[..., Ran]


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest) -> Iterator[RunningBroker]:
    """On the engine that a test selects by `indirect` parameters; most accept any."""
    # without the delay of three seconds for the first member of each consumer group
    config = {"group.initial.rebalance.delay.ms": "0"}
    with open_test_broker(
        storage=require_engine(getattr(request, "param", "segment")), config=config
    ) as running:
        yield running


@pytest.fixture
def command(
    broker: RunningBroker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Command]:
    """Runs a command line against the broker, in this process; an alarm interrupts one that does
    not end. `root`: another outermost command."""
    monkeypatch.setenv("KBROKER_BOOTSTRAP", broker.bootstrap)
    previous = signal.signal(signal.SIGALRM, _too_long)

    def call(*arguments: str | Path, root: click.Command = cli, program: str = "kbroker") -> Ran:
        capfd.readouterr()
        signal.alarm(PATIENCE_S)
        try:
            code = run([str(argument) for argument in arguments], root, program)
        finally:
            signal.alarm(0)
        output = capfd.readouterr()
        return Ran(code, output.out, output.err)

    yield call
    signal.signal(signal.SIGALRM, previous)


def _too_long(number: int, frame: FrameType | None) -> NoReturn:
    raise AssertionError(f"the command did not end within {PATIENCE_S} s")


@pytest.fixture
def topic(request: pytest.FixtureRequest, broker: RunningBroker) -> str:
    """A new topic of three partitions, named after the file and the test. One broker serves many
    files."""
    test = request.node.name.replace("[", ".").replace("]", "").replace(" ", "-")
    name = f"{request.path.stem.removeprefix('test_')}.{test}"
    broker.create_topic(name, partitions=3)
    return name
