"""Every command that connects, against a broker without a plain listener."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kbroker.cli import run
from kbroker.cli.exits import OK, REFUSED, UNREACHABLE
from kbroker.client.broker_process import RunningBroker, free_port
from kbroker.client.properties import read_properties
from kbroker.client.security import ClientSecurity

Secured = Callable[..., tuple[int, str, str]]

COMMANDS = [
    "topics create orders --partitions 2",
    "topics list",
    "topics describe orders",
    "topics alter orders --partitions 3",
    "configs set --topic orders retention.ms=86400000",
    "configs describe --topic orders",
    "configs delete --topic orders retention.ms",
    "produce orders {lines}",
    "consume orders --from earliest -n 2",
    "consume orders --group audit --from earliest -n 2",
    "groups list",
    "groups describe audit",
    "groups reset-offsets audit --all-topics --to-earliest --execute",
    "groups delete-offsets audit --topic orders",
    "groups delete audit",
    "queues create jobs",
    "queues send jobs one two",
    "queues list",
    "queues describe jobs",
    "queues peek jobs",
    "queues pause jobs",
    "queues resume jobs",
    "queues export",
    "share-consume jobs --group jobs -n 1",
    "share-groups list",
    "share-groups describe jobs",
    "dead-letters list dlq.jobs",
    "dead-letters count dlq.jobs",
    "dead-letters redrive dlq.jobs --name r",
    "transactions list",
    "transactions producers orders",
    "perf produce --seconds 0.2 --warm-up 0",
    "perf latency --rate 10 --seconds 0.2 --warm-up 0",
    "topics delete-records orders --to-end --yes",
    "queues purge jobs --yes",
    "queues delete jobs --force --yes",
    "topics delete orders",
]


PASSWORD = "canary-of-alice"
USERS = [
    "users create bob --password-file {lines}",
    "users alter bob --password-file {lines} --mechanism SCRAM-SHA-512",
    "users list",
    "users delete bob",
]


@pytest.fixture(scope="module", params=["SSL", "SASL_SSL"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Named after the protocol."""
    return tmp_path_factory.mktemp(request.param, numbered=False)


@pytest.fixture(scope="module")
def broker(folder: Path) -> Iterator[RunningBroker]:
    """Its settings and those of its client are the lines that `kbroker tls init` prints. The user
    alice has a certificate (SSL), or a password: the first user of the directory."""
    with pytest.MonkeyPatch.context() as patch:
        printed: list[str] = []
        patch.setattr("click.echo", lambda text, **more: printed.append(text))
        more = ["--client", "alice"] if folder.name == "SSL" else []
        assert run(["tls", "init", str(folder / "certificates"), *more]) == OK
        (folder / "password").write_text(PASSWORD)
        create = ["users", "create", "alice", "--password-file", str(folder / "password")]
        assert run([*create, "--data-dir", str(folder / "data")]) == OK
    _, broker_lines, client_lines = "\n".join(printed[:-1]).split("\n\n")
    if folder.name == "SASL_SSL":
        client_lines = client_lines.replace("sasl.username=NAME", "sasl.username=alice")
        client_lines += f"\nsasl.password={PASSWORD}\n"
    (folder / "client.properties").write_text(client_lines)
    port = free_port()
    config = read_properties(broker_lines, "broker")
    assert config["listeners"].startswith(f"{folder.name}://")
    config["listeners"] = config["listeners"].replace("9093", str(port))
    config["authorizer.class.name"] = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    config["super.users"] = "User:CN=alice;User:alice"
    security = ClientSecurity.of(read_properties(client_lines, "client"))
    running = RunningBroker(folder, port=port, config=config, security=security)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def secured(broker: RunningBroker, folder: Path, capfd: pytest.CaptureFixture[str]) -> Secured:
    """Runs a command line with the client's settings."""

    def call(line: str) -> tuple[int, str, str]:
        (folder / "lines").write_text("one\ntwo\n")
        arguments = [each.format(lines=folder / "lines") for each in line.split()]
        capfd.readouterr()
        config = str(folder / "client.properties")
        code = run([*arguments, "-b", broker.bootstrap, "--command-config", config])
        output = capfd.readouterr()
        return code, output.out, output.err

    return call


def test_all_commands(secured: Secured, broker: RunningBroker) -> None:
    with _command_lines() as seen:
        for command in (*COMMANDS, *USERS):
            code, output, errors = secured(command)
            assert code == OK, f"{command}: {errors}"
            assert "canary" not in output + errors
    assert any(b"kbroker" in line for line in seen)
    assert not any(b"canary" in line for line in seen)
    assert "canary" not in broker.logs()
    files = [path for path in broker.data_dir.rglob("*") if path.is_file()]
    assert not any(b"canary" in path.read_bytes() for path in files)


def test_without_settings(broker: RunningBroker, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topics", "list", "-b", broker.bootstrap]) == UNREACHABLE
    assert "give --command-config with security.protocol" in capsys.readouterr().err


def test_the_fixtures_own_requests(broker: RunningBroker, secured: Secured, folder: Path) -> None:
    broker.create_topic("of-the-fixture")
    assert broker.client_settings()["security.protocol"] == folder.name
    _, out, _ = secured("topics list --json")
    assert "of-the-fixture" in json.loads(out)


def test_what_a_user_may_do(secured: Secured, broker: RunningBroker, folder: Path) -> None:
    """A user with a password, where there are such; otherwise the entries are only kept."""
    for command in (
        "topics create mail",
        "queues create work",
        "acls add --producer --user app --topic mail",
        "acls add --consumer --user app --topic mail --group readers",
        "acls add --producer --user app --topic work",
        "acls add --worker --user app --topic work",
        "acls add --user app --topic mail --operation write --deny --host 10.9.8.7",
        "acls list --user app",
        "acls list --topic work --json",
    ):
        code, output, errors = secured(command)
        assert code == OK, f"{command}: {errors}"
    assert [row["operation"] for row in json.loads(output)].count("read") == 1
    if folder.name == "SASL_SSL":
        _work_as_app(secured, folder)
    code, output, errors = secured("acls remove --user app --yes")
    assert (code, output) == (OK, "removed 11 entries\n"), errors


def _work_as_app(secured: Secured, folder: Path) -> None:
    assert secured("users create app --password-file {lines}")[0] == OK
    admin = folder / "client.properties"
    settings = admin.read_text()
    app = settings.replace("sasl.username=alice", "sasl.username=app").replace(PASSWORD, "one")
    admin.write_text(app)
    try:
        for command in (
            "produce mail {lines}",
            "consume mail --from earliest -n 2",
            "consume mail --group readers --from earliest -n 2",
            "produce work {lines}",
            "share-consume work --group work -n 1",
            "perf fetch --topic mail --seconds 0.2 --warm-up 0",
            "perf latency --topic mail --rate 10 --seconds 0.2 --warm-up 0",
        ):
            code, _, errors = secured(command)
            assert code == OK, f"{command}: {errors}"
        for command in (
            "topics create other",
            "consume mail --group others -n 1",
            "users list",
            "acls list",
        ):
            code, output, errors = secured(command)
            assert code == REFUSED, f"{command}: {output}"
            assert "uthorization failed" in errors, f"{command}: {errors}"
    finally:
        admin.write_text(settings)


@contextmanager
def _command_lines() -> Iterator[set[bytes]]:
    """The command lines of all processes that ran meanwhile, as any user of the machine sees
    them."""
    seen: set[bytes] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.02):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    seen.add(path.read_bytes())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
