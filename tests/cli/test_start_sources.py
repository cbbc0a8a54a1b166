"""`kbroker start` from the command line, the environment and the file: their precedence, and that
an error names the place of the wrong value."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click
import pytest

from kbroker.cli import run
from kbroker.cli.exits import OK, USAGE
from kbroker.cli.start import start as start_command
from kbroker.cli.start_sources import PREFIX, StartOption
from kbroker.client import admin
from kbroker.client.rpc import Connection
from kbroker.settings.broker import BROKER_CONFIGS
from kbroker.testing.broker import open_test_broker
from tests.cli.test_start import ends, ready_port

ROOT = Path(__file__).parents[2]
OPTIONS = [each for each in start_command.params if isinstance(each, StartOption)]


@contextmanager
def started(directory: Path, *arguments: str, env: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """In a separate directory, with only these variables in the environment."""
    command = [sys.executable, "-m", "kbroker", "start", *arguments]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=directory,
        env={"PYTHONPATH": str(ROOT), **env},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def default_partitions(process: subprocess.Popen[str]) -> int:
    with Connection("127.0.0.1", ready_port(process)) as connection:
        admin.create_topic(connection, "t")
        (topic,) = admin.topics(connection)
    return len(topic.partitions)


def test_everything_comes_from_the_environment(tmp_path: Path) -> None:
    """Variables for clients' connections do not affect it."""
    env = {
        "KBROKER_START_DATA_DIR": "from-env",
        "KBROKER_START_STORAGE": "lmdb",
        "KBROKER_START_STATE_STORAGE": "memory",
        "KBROKER_START_LISTEN": "127.0.0.1:0",
        "KBROKER_START_ADVERTISE": "broker.example:1",
        "KBROKER_START_DURABILITY": "os",
        "KBROKER_START_CONFIG": "num.partitions=4  auto.create.topics.enable=false",
        "KBROKER_START_ADMIN_HOST": "a.example,b.example",
        "KBROKER_START_LOG_FORMAT": "json",
        "KBROKER_START_LOG_LEVEL": "",
        "KBROKER_START_ADOPT": "no",
        "KBROKER_ADMIN": "127.0.0.1:1",
        "KBROKER_BOOTSTRAP": "127.0.0.1:2",
    }
    with started(tmp_path, env=env) as process:
        assert process.stdout is not None
        partitions = default_partitions(process)
        process.terminate()
        code, out, err = ends(process)
    assert (code, out, partitions) == (OK, "", 4)
    assert (tmp_path / "from-env").is_dir()
    assert "admin HTTP" not in err
    assert "options come from environment KBROKER_START_ADMIN_HOST, KBROKER_START_ADOPT" in err
    assert "KBROKER_START_LOG_LEVEL" not in err


def test_everything_comes_from_the_file(tmp_path: Path) -> None:
    lines = "# a broker\nlisten = 127.0.0.1:0\ndata-dir=from-file\nstorage=rocksdb\ndurability=os\nadmin=0\n"
    more = "admin-host=a.example, b.example\nadopt=false\nlog-level=warning\nnum.partitions=3\n"
    (tmp_path / "broker.properties").write_text(f"\ufeff{lines}{more}")
    with started(tmp_path, "--config-file", "broker.properties", env={}) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.terminate()
        code, _, err = ends(process)
    assert (code, err) == (OK, "")
    assert "(log rocksdb, state rocksdb, durability os, data from-file, admin http://127.0.0.1:" in line


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    """Each option separately, and each setting of the broker separately."""
    settings = "num.partitions=2\nauto.create.topics.enable=false\nlog.retention.hours=5\n"
    (tmp_path / "f").write_text(
        f"data-dir=from-file\nstorage=memory\ndurability=os\nlisten=nowhere\n{settings}"
    )
    env = {
        "KBROKER_START_DATA_DIR": "from-env",
        "KBROKER_START_DURABILITY": "disk",
        "KBROKER_START_CONFIG": "num.partitions=3 auto.create.topics.enable=true",
        "KBROKER_START_CONFIG_FILE": "f",
    }
    with started(
        tmp_path, "--data-dir", "given", "--listen", "127.0.0.1:0", "--config", "num.partitions=4", env=env
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        port = int(line.split()[3].rpartition(":")[2])
        with Connection("127.0.0.1", port) as connection:
            configs = {
                each.name: each.value
                for each in admin.describe_configs(connection, admin.ResourceType.BROKER, "1")
            }
        process.terminate()
        assert ends(process)[0] == OK
    assert "(log memory, state memory, durability disk, data given)" in line
    chosen = ("num.partitions", "auto.create.topics.enable", "log.retention.hours")
    assert [configs[name] for name in chosen] == ["4", "true", "5"]


@pytest.mark.parametrize(
    ("env", "text"),
    [
        (
            {"LISTEN": "nowhere"},
            "Invalid value for KBROKER_START_LISTEN (environment): 'nowhere' is not HOST:PORT",
        ),
        (
            {"LISTEN": "0.0.0.0:0"},
            "KBROKER_START_LISTEN (environment): 0.0.0.0:0 is every address of this machine",
        ),
        ({"STORAGE": "floppy"}, "KBROKER_START_STORAGE (environment): unknown storage engine 'floppy'"),
        (
            {"STATE_STORAGE": "floppy"},
            "KBROKER_START_STATE_STORAGE (environment): unknown state storage engine 'floppy'",
        ),
        (
            {"ADOPT": "maybe"},
            "Invalid value for KBROKER_START_ADOPT (environment): 'maybe' is not a valid boolean",
        ),
        ({"ADMIN": "here"}, "Invalid value for KBROKER_START_ADMIN (environment): 'here' is not [HOST:]PORT"),
        (
            {"ADMIN_HOST": "a,,b"},
            "Invalid value for KBROKER_START_ADMIN_HOST (environment): a name must not be empty",
        ),
        (
            {"LOG_LEVEL": "loud"},
            "Invalid value for KBROKER_START_LOG_LEVEL (environment): 'loud' is not one of",
        ),
        (
            {"CONFIG": "num.partitions=1 more"},
            "KBROKER_START_CONFIG (environment): 'more' is not NAME=VALUE; settings are separated",
        ),
        (
            {"CONFIG": "num.partitions=none"},
            "KBROKER_START_CONFIG (environment): Invalid value none for configuration num.partitions",
        ),
        (
            {"CONFIG": "num.partitions=1 num.partitions=1"},
            "KBROKER_START_CONFIG (environment): num.partitions is given more than once",
        ),
        ({"CONFIG": "kbroker.persister=x"}, "KBROKER_START_CONFIG (environment): unknown persister 'x'"),
        (
            {"CONFIG_FILE": "/no/file"},
            "Invalid value for KBROKER_START_CONFIG_FILE (environment): File '/no/file' does not exist",
        ),
        (
            {"DATADIR": "x"},
            "environment variable KBROKER_START_DATADIR names no option; did you mean "
            "KBROKER_START_DATA_DIR?",
        ),
        (
            {"X": "x"},
            "environment variable KBROKER_START_X names no option; there are KBROKER_START_DATA_DIR, "
            "KBROKER_START_STORAGE,",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_errors_name_the_variable(
    env: dict[str, str],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in env.items():
        monkeypatch.setenv(PREFIX + name, value)
    assert run(["start"]) == USAGE
    error = capsys.readouterr().err
    assert text in error
    assert (error.count("\n"), list(tmp_path.iterdir())) == (1, [])


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("listen=nowhere", "Invalid value for {file}, line 2 (listen): 'nowhere' is not HOST:PORT"),
        ("listen=0.0.0.0:0", "{file}, line 2 (listen): 0.0.0.0:0 is every address of this machine"),
        ("data-dir=", "Invalid value for {file}, line 2 (data-dir): must not be empty"),
        ("durability=hope", "Invalid value for {file}, line 2 (durability): 'hope' is not one of"),
        ("adopt=maybe", "Invalid value for {file}, line 2 (adopt): 'maybe' is not a valid boolean"),
        ("admin-host=a,", "Invalid value for {file}, line 2 (admin-host): a name must not be empty"),
        ("storage=floppy", "{file}, line 2 (storage): unknown storage engine 'floppy'"),
        ("group.consumer.assignors=floppy", "{file}, line 2: unknown assignor 'floppy'"),
        ("num.partitions=0", "{file}, line 2: Invalid value 0 for configuration num.partitions"),
        ("lsten=1", "{file}, line 2: unknown setting 'lsten'; did you mean listen?"),
        (
            "log.dirs=/data",
            "{file}, line 2: log.dirs: use --data-dir, or a line data-dir=DIR",
        ),
        ("config=a=b", "{file}, line 2: config cannot be given in the file: a setting is a line of its own"),
        (
            "config-file=f",
            "{file}, line 2: config-file cannot be given in the file: a file cannot name another one",
        ),
        ("=127.0.0.1:0", "{file}, line 2: this line has no name; write name=value"),
        ("data-dir=C:\\users", "{file}, line 2: \\u needs four hexadecimal digits"),
        (
            "group.share.heartbeat.interval.ms=100000",
            "the configuration contradicts itself: group.share.max.heartbeat.interval.ms (15000) must be "
            "greater than or equal to "
            "group.share.heartbeat.interval.ms (100000): raise the one or lower the other, both in one "
            "request where both are "
            "altered; set: group.share.heartbeat.interval.ms by {file}, line 2",
        ),
    ],
    ids=lambda value: value.split("=")[0] if isinstance(value, str) else "",
)
def test_errors_name_the_file_and_the_line(
    line: str, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "server.properties"
    file.write_text(f"# settings\n{line}\n")
    assert run(["start", "--config-file", str(file)]) == USAGE
    error = capsys.readouterr().err
    assert text.format(file=file) in error
    assert (error.count("\n"), list(tmp_path.iterdir())) == (1, [file])


def test_a_value_that_does_not_count_is_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place with higher precedence has the option."""
    monkeypatch.setenv("KBROKER_START_LISTEN", "nowhere")
    (tmp_path / "f").write_text("durability=hope\n")
    arguments = ["--listen", "h:1", "--durability", "os", "--config-file", str(tmp_path / "f")]
    context = start_command.make_context("start", arguments, resilient_parsing=False)
    assert (str(context.params["listen"]), context.params["durability"]) == ("h:1", "os")


def test_names_of_the_admin_port_may_stand_in_several_lines(tmp_path: Path) -> None:
    """As `--admin-host` may be given several times."""
    (tmp_path / "f").write_text("admin-host=a.example\nadmin-host=b.example,c.example\n")
    context = start_command.make_context("start", ["--config-file", str(tmp_path / "f")])
    assert context.params["admin_hosts"] == ("a.example", "b.example", "c.example")


def test_every_option_has_a_variable_and_a_name_in_the_file() -> None:
    context = click.Context(start_command)
    assert {each.name for each in OPTIONS} == {each.name for each in start_command.params} - {"detach"}
    text = start_command.get_help(context).replace("\n", " ")
    for option in OPTIONS:
        assert option.envvar == PREFIX + option.opts[0].removeprefix("--").upper().replace("-", "_")
        assert str(option.envvar) in text.replace(" ", "")
    assert not {each.long_name for each in OPTIONS} & BROKER_CONFIGS.keys()


def test_brokers_of_tests_and_of_the_demo_are_not_steered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KBROKER_START_ADMIN", "not an address")
    monkeypatch.setenv("KBROKER_START_CONFIG", "no.such.setting=1")
    with open_test_broker(storage="memory") as broker:
        assert ", admin " not in broker.ready_line
