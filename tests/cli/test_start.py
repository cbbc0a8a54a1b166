"""`kbroker start` as a process: the ready line, configs, logging, signals and refusals."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kbroker.cli.exits import DATA_DIRECTORY, OK, USAGE
from kbroker.client import admin
from kbroker.client.broker_process import free_port
from kbroker.client.rpc import Connection
from kbroker.testing.broker import open_test_broker
from tests.brokers import ENGINES, require_engine
from tests.small_disk import fill_the_rest, small_disk
from tests.terminals import in_terminal


@contextmanager
def start(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "kbroker", "start", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def ready_port(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.match(
        r"kbroker ready on \S+:(\d+) \(log (\w+), state (\w+), durability (\w+), data .*\)\n", line
    )
    assert found, line
    return int(found[1])


def ends(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_free_port_the_ready_line_and_a_clean_end(tmp_path: Path, number: signal.Signals) -> None:
    with start("--data-dir", tmp_path / "data", "--listen", "127.0.0.1:0", "--log-format", "json") as process:
        with Connection("127.0.0.1", ready_port(process)) as connection:
            assert admin.topics(connection) == []
        process.send_signal(number)
        code, out, err = ends(process)
    assert (code, out) == (OK, "")
    assert all(json.loads(line)["level"] for line in err.splitlines())
    assert number.name in err


def test_the_command_line_wins_over_the_config_file(tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text(
        "# as in Kafka\nnum.partitions=3\nauto.create.topics.enable=false\n\n"
    )
    listen = ("--data-dir", tmp_path / "data", "--listen", "127.0.0.1:0")
    with start(
        *listen, "--config-file", tmp_path / "server.properties", "--config", "num.partitions=5"
    ) as process:
        with Connection("127.0.0.1", ready_port(process)) as connection:
            admin.create_topic(connection, "t")
            (topic,) = admin.topics(connection)
        process.terminate()
        assert ends(process)[0] == OK
    assert topic.partitions == (0, 1, 2, 3, 4)


def wait_for(log: Path, text: str) -> None:
    deadline = time.monotonic() + 60
    while text not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)


def test_a_closed_terminal_is_an_orderly_stop(tmp_path: Path) -> None:
    log, data_dir = tmp_path / "log", tmp_path / "data"
    log.touch()
    listen = ["--data-dir", str(data_dir), "--listen", "127.0.0.1:0"]
    with in_terminal([sys.executable, "-m", "kbroker", "start", *listen], log) as program:
        assert b"kbroker ready on" in os.read(program.terminal, 1000)
        os.close(program.terminal)
        wait_for(log, "received SIGHUP: closing")
        assert program.wait() == OK
    assert "ending at once" not in log.read_text()


def test_sighup_does_not_read_a_pipe_again(tmp_path: Path) -> None:
    """Nobody may write into it any more, and the broker would wait."""
    log, pipe = tmp_path / "log", tmp_path / "pipe"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "kbroker", "start", "--data-dir", str(tmp_path / "data")]
    with log.open("w") as errors, subprocess.Popen(
        [*command, "--config-file", str(pipe)],
        stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            pipe.write_text("listen=127.0.0.1:0\nlog-level=warning\n")
            port = ready_port(process)
            process.send_signal(signal.SIGHUP)
            wait_for(log, f"the log level stays: {pipe} is not a regular file now")
            with Connection("127.0.0.1", port) as connection:
                assert admin.topics(connection) == []
            process.terminate()
            assert process.wait(60) == OK
        finally:
            process.kill()


def test_without_a_terminal_sighup_reads_files_again(tmp_path: Path) -> None:
    """The log level is that of the configuration file, unless an option gives it."""
    log, file = tmp_path / "log", tmp_path / "broker.properties"
    file.write_text("log-level=warning\n")
    command = [
        sys.executable,
        "-m",
        "kbroker",
        "start",
        "--listen",
        "127.0.0.1:0",
        "--config-file",
        str(file),
    ]

    def hang_up(process: subprocess.Popen[str], level: str, then: str) -> None:
        file.write_text(f"log-level={level}\n")
        process.send_signal(signal.SIGHUP)
        wait_for(log, then)

    for number, (more, steps) in enumerate({
        (): {"debug": "the log level is debug", "loud": "'loud' is not one of", "info": "level is info"},
        ("--log-level", "info"): {"debug": "the log level stays: --log-level gives it"},
    }.items()):  # fmt: skip
        with log.open("w") as errors, subprocess.Popen(
            [*command, "--data-dir", str(tmp_path / f"data-{number}"), *more],
            stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
        ) as process:  # fmt: skip
            port = ready_port(process)
            for level, then in steps.items():
                hang_up(process, level, then)
            with Connection("127.0.0.1", port) as connection:
                assert admin.topics(connection) == []
            process.terminate()
            assert process.wait(60) == OK


def test_nohup_keeps_the_broker_from_sighup(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with start("--data-dir", tmp_path / "data", "--listen", "127.0.0.1:0") as process:
            with Connection("127.0.0.1", ready_port(process)) as connection:
                process.send_signal(signal.SIGHUP)
                assert admin.topics(connection) == []
            process.terminate()
            code, _, errors = ends(process)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert code == OK
    assert "SIGHUP" not in errors


@pytest.mark.parametrize("engine", ENGINES)
def test_a_new_data_directory_is_closed_to_other_users(tmp_path: Path, engine: str) -> None:
    data_dir = tmp_path / "data"
    listen = ("--data-dir", data_dir, "--listen", "127.0.0.1:0", "--storage", require_engine(engine))
    before = os.umask(0o022)
    try:
        with start(*listen, "--config", "kbroker.data.directory.mode=750") as process:
            ready_port(process)
            assert stat.S_IMODE(data_dir.stat().st_mode) == 0o750
            process.terminate()
            assert "other users" not in ends(process)[2]
        with start(*listen) as process:
            ready_port(process)
            process.terminate()
            code, _, errors = ends(process)
    finally:
        os.umask(before)
    assert code == OK
    assert (
        errors.count(f"other users of this host can read {data_dir} (mode 750): `chmod 700 {data_dir}`") == 1
    )


def test_clients_are_told_the_advertised_address_and_strangers_bring_a_warning(tmp_path: Path) -> None:
    with start(
        "--data-dir", tmp_path / "data", "--listen", "0.0.0.0:0", "--advertise", "broker.example:1234"
    ) as process:
        with Connection("127.0.0.1", ready_port(process)) as connection:
            answer = connection.call("metadata", 1, topics=[])
        process.terminate()
        code, _, err = ends(process)
    assert code == OK
    assert [(each.host, each.port) for each in answer.brokers] == [("broker.example", 1234)]
    assert err.startswith("kbroker: warning: listening on 0.0.0.0:0 without authentication: ")


def test_a_broker_serves_though_nobody_takes_its_ready_line(tmp_path: Path) -> None:
    port = free_port()
    listen = ["--data-dir", str(tmp_path / "data"), "--listen", f"127.0.0.1:{port}"]
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "kbroker", "start", *listen]
        with subprocess.Popen(command, stdout=full, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            lines = iter(process.stderr.readline, "")
            assert any("the ready line cannot be printed: No space left on device" in line for line in lines)
            with Connection("127.0.0.1", port) as connection:
                assert admin.topics(connection) == []
            process.terminate()
            process.communicate(timeout=60)
    assert process.returncode == OK


def refused(*arguments: str | Path) -> tuple[int, str]:
    with start(*arguments, "--listen", "127.0.0.1:0") as process:
        code, out, err = ends(process)
    assert out == ""
    assert err.startswith("kbroker: ")
    assert err.count("\n") == 1
    return code, err


@pytest.mark.parametrize("config", ["no.such.config=1", "num.partitions=many", "num.partitions=0"])
def test_a_bad_config_is_refused_in_one_line(tmp_path: Path, config: str) -> None:
    code, err = refused("--data-dir", tmp_path / "data", "--config", config)
    assert code == USAGE
    assert config.split("=")[0] in err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("files", [8, 12, 27, 63])
def test_too_few_open_files_are_refused_in_one_line(tmp_path: Path, files: int) -> None:
    """Regression: a traceback at the start, or at the end."""
    few = f'ulimit -n {files} && exec "$0" -m kbroker start "$@"'
    command = ["sh", "-c", few, sys.executable, "--data-dir", tmp_path / "data", "--listen", "127.0.0.1:0"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == DATA_DIRECTORY
    assert (ran.stdout, ran.stderr.count("\n"), "ulimit -n" in ran.stderr) == ("", 1, True)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("engine", ["lmdb", "rocksdb"])
def test_a_full_disk_at_the_start_asks_for_room(tmp_path: Path, engine: str) -> None:
    """Regression: it had the advice for damaged data, or none, or a traceback."""
    with small_disk(tmp_path / "disk", 32 << 20) as disk:
        arguments = ("--data-dir", disk / "data", "--storage", require_engine(engine))
        for free in (4, 8, 16, 64):
            ballast = fill_the_rest(disk, but_bytes=free << 10)
            code, err = refused(*arguments)
            assert (code, "make room" in err) == (DATA_DIRECTORY, True), err
            ballast.unlink()
        with start(*arguments, "--listen", "127.0.0.1:0") as process:
            ready_port(process)
            process.terminate()
            assert ends(process)[0] == OK


def test_a_data_directory_of_another_engine(tmp_path: Path) -> None:
    with open_test_broker(storage="lmdb", data_dir=tmp_path / "data"):
        code, err = refused("--data-dir", tmp_path / "data", "--storage", "lmdb")
        assert (code, "in use by another broker" in err) == (DATA_DIRECTORY, True)
    code, err = refused("--data-dir", tmp_path / "data")
    assert code == DATA_DIRECTORY
    assert "start with --storage lmdb" in err


@pytest.mark.parametrize(
    ("arguments", "installed"),
    [
        (("--storage", "floppy"), "segment"),
        (("--state-storage", "floppy"), "segment"),
        (("--config", "kbroker.persister=floppy"), "noop"),
        (("--config", "group.consumer.assignors=uniform,floppy"), "range"),
    ],
)
def test_what_is_not_installed_is_refused_before_the_directory_is_made(
    tmp_path: Path, arguments: tuple[str, str], installed: str
) -> None:
    """A directory records its engines permanently: the next start, with the right one, must find
    none."""
    code, err = refused("--data-dir", tmp_path / "data", *arguments)
    assert code == USAGE
    assert "floppy" in err
    assert installed in err
    assert not (tmp_path / "data").exists()


def test_a_config_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_bytes(b"\xff\xfenum.partitions=3")
    code, err = refused("--data-dir", tmp_path / "data", "--config-file", tmp_path / "server.properties")
    assert code == USAGE
    assert "server.properties" in err
