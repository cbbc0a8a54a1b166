"""The shipped pytest plugin in another project's test suite: pytest in an empty directory, with
nothing but the entry point."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = """
from confluent_kafka import Producer, ShareConsumer


def test_a_record_survives_kill_and_restart(kbroker):
    kbroker.create_topic("orders", partitions=2)
    kbroker.set_group_config("workers", {"share.auto.offset.reset": "earliest"})
    producer = Producer({"bootstrap.servers": kbroker.bootstrap})
    producer.produce("orders", b"one")
    assert producer.flush(30) == 0
    kbroker.kill()
    kbroker.restart()
    consumer = ShareConsumer({"bootstrap.servers": kbroker.bootstrap, "group.id": "workers"})
    consumer.subscribe(["orders"])
    messages = []
    while not messages:
        messages = list(consumer.poll(1))
    assert [message.value() for message in messages] == [b"one"]
    consumer.close()
    assert kbroker.data_dir.is_dir()
    assert "ready" in kbroker.ready_line
    assert kbroker.logs()


def test_each_test_has_its_own_broker(kbroker):
    kbroker.create_topic("orders")
"""

SHARED = """
import pytest


@pytest.mark.parametrize("number", range(2))
def test_shared(kbroker, number):
    kbroker.create_topic(f"topic-{number}")
    print("PID", kbroker.pid)
"""


FAILING = """
import pytest

from kbroker.testing.broker import open_test_broker


@pytest.fixture
def ready(kbroker):
    kbroker.create_topic("made-by-setup")
    raise RuntimeError("setup fails")


@pytest.fixture
def leaving(kbroker):
    yield
    kbroker.create_topic("made-by-teardown")
    raise RuntimeError("teardown fails")


@pytest.fixture
def own():
    with open_test_broker() as broker:
        yield broker


def test_passes(kbroker):
    kbroker.create_topic("of-one-that-passes")


def test_call(kbroker):
    kbroker.create_topic("made-by-call")
    assert kbroker.bootstrap == "elsewhere"


def test_setup(ready):
    pass


def test_teardown(leaving):
    pass


def test_own_fixture(own):
    own.create_topic("made-by-own")
    raise RuntimeError("call fails")


def test_without_a_broker():
    raise RuntimeError("call fails")


def test_broker_that_died(kbroker):
    kbroker.create_topic("made-before-death")
    kbroker.kill()
    raise RuntimeError("call fails")
"""
SHOWN = {
    "test_call": {"made-by-call"},
    "ERROR at setup of test_setup": {"made-by-setup"},
    "ERROR at teardown of test_teardown": {"made-by-teardown"},
    "test_own_fixture": {"made-by-own"},
    "test_without_a_broker": set(),
    "test_broker_that_died": {"made-before-death"},
}
"""By the heading of the report: the topics whose creation the shown log contains."""

FAILING_SHARED = """
def test_passes(kbroker):
    kbroker.create_topic("of-one-that-passes")


def test_fails(kbroker):
    kbroker.create_topic("of-the-failing")
    raise RuntimeError("call fails")


def test_fails_at_run_time(request):
    request.getfixturevalue("kbroker").create_topic("asked-for-late")
    raise RuntimeError("call fails")
"""


def run_suite(directory: Path, suite: str, *arguments: str, code: int = 0) -> str:
    (directory / "test_suite.py").write_text(suite)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, "test_suite.py"]
    ended = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize("storage", ["segment", pytest.param("lmdb", marks=pytest.mark.full)])
def test_a_suite_of_somebody_else(tmp_path: Path, storage: str) -> None:
    assert "2 passed" in run_suite(tmp_path, SUITE, "--kbroker-storage", storage)


SECURED = """
from confluent_kafka import Producer


def test_secured(kbroker):
    kbroker.create_topic("orders")
    settings = kbroker.client_settings()
    assert settings["security.protocol"] == "PROTOCOL"
    producer = Producer(settings)
    producer.produce("orders", b"one")
    assert producer.flush(30) == 0
"""


@pytest.mark.parametrize("arguments", [(), ("--kbroker-protocol", "SASL_PLAINTEXT")])
def test_a_secured_broker_by_one_line(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nkbroker_protocol = SASL_SSL\n")
    suite = SECURED.replace("PROTOCOL", arguments[1] if arguments else "SASL_SSL")
    assert "1 passed" in run_suite(tmp_path, suite, *arguments)


WORKERS = """
from kbroker_client.worker import App

named = App("127.0.0.1:1", connect_timeout=0)


@named.task(queue="emails")
def send_email(payload): ...


def test_the_job_stays_in_the_test(kbroker):
    kbroker.create_queue("emails")
    assert send_email.send_blocking({"to": "ann"}).topic == "emails"


def test_the_redirection_has_ended():
    assert named.bootstrap == "127.0.0.1:1"
"""


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT"])
def test_apps_of_workers_connect_to_the_broker(tmp_path: Path, protocol: str) -> None:
    """Also those that name the address of another broker, in production perhaps."""
    assert "2 passed" in run_suite(tmp_path, WORKERS, "--kbroker-protocol", protocol)


def test_one_broker_for_the_session(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nkbroker_scope = session\n")
    output = run_suite(tmp_path, SHARED, "-s")
    pids = [line.rpartition("PID ")[2] for line in output.splitlines() if "PID " in line]
    assert len(pids) == 2
    assert len(set(pids)) == 1


def test_a_failing_test_shows_the_log_of_its_broker(tmp_path: Path) -> None:
    """In every phase, with brokers of the fixture and with the suite's own; a passing test shows
    nothing."""
    output = run_suite(tmp_path, FAILING, code=1)
    assert {heading: topics_logged(report) for heading, report in reports(output).items()} == SHOWN
    assert "of-one-that-passes" not in output


def test_with_xdist_the_log_comes_along(tmp_path: Path) -> None:
    output = run_suite(tmp_path, FAILING, "-n", "1", "-k", "test_call", code=1)
    assert {heading: topics_logged(report) for heading, report in reports(output).items()} == {
        "test_call": {"made-by-call"}
    }


def test_a_shared_broker_shows_what_it_logged_during_the_failing_test(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nkbroker_scope = session\n")
    found = {
        heading: topics_logged(report)
        for heading, report in reports(run_suite(tmp_path, FAILING_SHARED, code=1)).items()
    }
    assert found == {"test_fails": {"of-the-failing"}, "test_fails_at_run_time": {"asked-for-late"}}


def reports(output: str) -> dict[str, str]:
    """pytest's output for each failure, by its heading."""
    parts = re.split(r"^_{3,} (.+) _{3,}$", output.partition("short test summary")[0], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def topics_logged(report: str) -> set[str]:
    """From the section with the broker's log; the rest of a report quotes the test."""
    return set(re.findall(r"topic (\S+) created", report.partition("- log of the broker 127.0.0.1:")[2]))
