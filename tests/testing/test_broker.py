"""`open_test_broker`: starting, killing, freezing and restarting a real broker, and the error when
it does not start."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.client import admin
from kbroker.client.rpc import BrokerUnreachable
from kbroker.testing.broker import BrokerStartFailed, RunningBroker, open_test_broker


def topic_names(broker: RunningBroker) -> list[str]:
    with broker.connect() as connection:
        return [topic.name for topic in admin.topics(connection)]


def test_lives_of_a_broker() -> None:
    with open_test_broker() as broker:
        assert broker.ready_line.startswith(
            f"kbroker ready on {broker.bootstrap} (log segment, state segment, durability disk, data "
        )
        broker.create_topic("orders")
        for end in (broker.kill9, broker.stop):
            end()
            with pytest.raises(BrokerUnreachable):
                broker.connect()
            broker.restart()
            assert topic_names(broker) == ["orders"]
        broker.sigstop()
        with (
            broker.connect(timeout_s=0.2) as connection,
            pytest.raises(BrokerUnreachable, match="did not answer"),
        ):
            admin.topics(connection)
        broker.sigcont()
        assert topic_names(broker) == ["orders"]
        assert 0 < broker.anonymous_memory_bytes() < 1 << 30


def test_a_broker_that_does_not_start_says_why() -> None:
    with (
        pytest.raises(BrokerStartFailed, match="no-such-engine") as caught,
        open_test_broker(storage="no-such-engine"),
    ):
        pass
    assert caught.value.exit_code == 2, "wrong usage"


def test_two_brokers_on_one_directory(tmp_path: Path) -> None:
    with open_test_broker(data_dir=tmp_path / "data"):
        with (
            pytest.raises(BrokerStartFailed, match="in use") as caught,
            open_test_broker(data_dir=tmp_path / "data"),
        ):
            pass
        assert caught.value.exit_code == 4


def test_an_address_in_use() -> None:
    with (
        open_test_broker() as broker,
        pytest.raises(BrokerStartFailed, match="cannot listen"),
        open_test_broker(port=broker.port),
    ):
        pass


def test_an_unknown_config_is_a_usage_error() -> None:
    with (
        pytest.raises(BrokerStartFailed, match=r"no\.such\.config") as caught,
        open_test_broker(config={"no.such.config": "1"}),
    ):
        pass
    assert caught.value.exit_code == 2


def test_passwords_are_not_on_the_command_line(tmp_path: Path) -> None:
    """They are in a file that only its owner reads."""
    broker = RunningBroker(
        tmp_path, config={"no.such.password": "canary=1", "num.partitions": "3"}, extra_args=["--adopt"]
    )
    secrets = tmp_path / "secrets.properties"
    arguments = broker.arguments()
    assert "num.partitions=3" in arguments
    assert "canary" not in " ".join(arguments)
    assert arguments[-3:] == ["--config-file", str(secrets), "--adopt"]
    with pytest.raises(BrokerStartFailed, match=f"{secrets}, line 1: unknown setting 'no.such.password'"):
        broker.start()
    assert secrets.read_text() == "no.such.password=canary=1\n"
    assert secrets.stat().st_mode & 0o777 == 0o600
    assert "canary" not in broker.logs()
