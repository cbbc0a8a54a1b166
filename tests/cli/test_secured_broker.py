"""Every command that connects, against a broker without a plain listener."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from confluent_kafka import Producer

from kbroker.cli import cli, run
from kbroker.cli.exits import OK, REFUSED, UNREACHABLE
from kbroker.client.broker_process import RunningBroker, free_port
from kbroker.client.security import ClientSecurity
from kbroker.settings.properties import read_properties
from perf.workloads.command import workloads
from tests.canaries import command_lines

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
    "share-consume orders --group readers -n 1",
    "share-groups reset-offsets readers --all-topics --to-earliest --execute",
    "share-groups delete-offsets readers --topic orders",
    "share-groups delete readers",
    "groups list",
    "groups describe audit",
    "groups reset-offsets audit --all-topics --to-earliest --execute",
    "groups delete-offsets audit --topic orders",
    "groups delete audit",
    "queues create jobs",
    "queues send jobs one two",
    "queues list",
    "queues describe jobs --admin {admin}",
    "queues peek jobs",
    "queues pause jobs",
    "queues resume jobs",
    "queues export",
    "share-consume jobs --group jobs -n 1",
    "share-groups list",
    "share-groups describe jobs",
    "share-groups inflight jobs --admin {admin}",
    "dead-letters list dlq.jobs",
    "dead-letters count dlq.jobs",
    "dead-letters redrive dlq.jobs --name r",
    "dead-letters purge dlq.jobs --yes",
    "transactions list",
    "transactions describe tx",
    "transactions find-hanging --topic orders",
    "transactions abort tx --yes",
    "transactions producers orders",
    "quotas set --user app --produce-rate 1MB",
    "quotas list",
    "quotas remove --user app",
    "topics delete-records orders --to-end --yes",
    "queues purge jobs --yes",
    "queues delete jobs --force --yes",
    "topics delete orders",
]
WORKLOADS = [
    "produce --seconds 0.2 --warm-up 0",
    "fetch --records 1000 --seconds 0.2 --warm-up 0",
    "share-consume --records 10000 --seconds 0.2 --warm-up 0",
    "latency --rate 10 --seconds 0.2 --warm-up 0",
]
"""Commands of `python -m perf.workloads`."""


PASSWORD = "canary-of-alice"
AT_ADMIN = frozenset({"share-groups inflight"})
"""They speak to the admin endpoint only."""
ELSEWHERE = frozenset({"dead-letters show", "acls add", "acls list", "acls remove", "worker run"})
"""Commands of other tests here."""
USERS = [
    "users create bob --password-file {lines}",
    "users alter bob --password-file {lines} --mechanism SCRAM-SHA-512",
    "users list",
    "users delete bob",
]


@pytest.fixture(scope="module", params=["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
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
    if folder.name == "SASL_PLAINTEXT":
        broker_lines = broker_lines.replace("SASL_SSL:", "SASL_PLAINTEXT:")
        client_lines = client_lines.replace("=SASL_SSL", "=SASL_PLAINTEXT")
    if folder.name != "SSL":
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
    if folder.name.endswith("SSL"):
        config["kbroker.admin.protocol"] = "SSL"
    admin = ["--admin", "0"]
    running = RunningBroker(folder, port=port, config=config, security=security, extra_args=admin)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def secured(broker: RunningBroker, folder: Path, capfd: pytest.CaptureFixture[str]) -> Secured:
    """Runs a command line with the client's settings. `root`: another outermost command."""

    def call(line: str, root: click.Command = cli) -> tuple[int, str, str]:
        (folder / "lines").write_text("one\ntwo\n")
        admin = broker.ready_line.rpartition("admin ")[2].rstrip(")")
        arguments = [each.format(lines=folder / "lines", admin=admin) for each in line.split()]
        if not line.startswith(tuple(AT_ADMIN)):
            arguments += ["-b", broker.bootstrap]
        capfd.readouterr()
        code = run([*arguments, "--command-config", str(folder / "client.properties")], root)
        output = capfd.readouterr()
        return code, output.out, output.err

    return call


def test_all_commands(secured: Secured, broker: RunningBroker) -> None:
    lines = (*COMMANDS, *USERS)
    with command_lines() as seen:
        for root, command in (*((cli, each) for each in lines), *((workloads, each) for each in WORKLOADS)):
            if command == "transactions list":
                _open_transaction(broker)
            code, output, errors = secured(command, root)
            assert code == OK, f"{command}: {errors}"
            assert "canary" not in output + errors
    assert any(b"kbroker" in line for line in seen)
    assert not any(b"canary" in line for line in seen)
    assert "canary" not in broker.logs()
    files = [path for path in broker.data_dir.rglob("*") if path.is_file()]
    assert not any(b"canary" in path.read_bytes() for path in files)


def test_a_dead_letter_is_redriven(secured: Secured) -> None:
    for command in (
        "queues create parcels",
        "queues send parcels one",
        "share-consume parcels --group parcels -n 1 --reject",
    ):
        code, _, errors = secured(command)
        assert code == OK, f"{command}: {errors}"
    deadline = time.monotonic() + 60
    while not json.loads(secured("dead-letters list dlq.parcels --json")[1]):
        assert time.monotonic() < deadline
    for command in ("dead-letters show dlq.parcels 0:0", "dead-letters redrive dlq.parcels --name again"):
        code, _, errors = secured(command)
        assert code == OK, f"{command}: {errors}"
    assert secured("share-consume parcels --group parcels -n 1")[1] == "one\n"


WORKER = """
from kbroker_client.worker import App
app = App()
@app.task(queue="mails")
def mails(payload):
    with open("done", "a") as file:
        file.write(payload["to"])
"""


def test_a_worker(secured: Secured, broker: RunningBroker, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mails.py").write_text(WORKER)
    for command in ("queues create mails", """queues send mails {{"to":"ann"}}"""):
        code, _, errors = secured(command)
        assert code == OK, f"{command}: {errors}"
    config = str(folder / "client.properties")
    worker = subprocess.Popen(
        [sys.executable, "-m", "kbroker", "worker", "run", "mails:app", "-b", broker.bootstrap,
         "--command-config", config],
        cwd=tmp_path, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "done").exists():
            assert worker.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        worker.terminate()
        _, errors = worker.communicate(timeout=60)
    assert worker.returncode == OK
    assert "canary" not in errors


def test_every_command_is_here() -> None:
    """A command that cannot reach a secured broker would leave it without administration."""
    known = (*COMMANDS, *USERS, *ELSEWHERE)
    found = set(_connecting(cli, ()))
    assert len(found) > 50
    assert {each for each in found if not any(f"{line} ".startswith(f"{each} ") for line in known)} == set()
    assert set(_connecting(workloads, ())) == {line.split()[0] for line in WORKLOADS}


def _connecting(command: click.Command, path: tuple[str, ...]) -> Iterator[str]:
    """The commands that take --command-config, and those that should."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _connecting(found, (*path, name))
        return
    options = {option for param in command.params for option in param.opts}
    if options & {"--bootstrap-server", "--command-config", "--admin"} and path != ("start",):
        assert "--command-config" in options, path
        yield " ".join(path)


def _open_transaction(broker: RunningBroker) -> None:
    """Its producer is gone, and it stays open."""
    producer = Producer({**broker.client_settings(), "transactional.id": "tx"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("orders", b"three")
    assert producer.flush(60) == 0


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
    if folder.name != "SSL":
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
        ):
            code, _, errors = secured(command)
            assert code == OK, f"{command}: {errors}"
        for command in (
            "fetch --topic mail --seconds 0.2 --warm-up 0",
            "latency --topic mail --rate 10 --seconds 0.2 --warm-up 0",
        ):
            code, _, errors = secured(command, workloads)
            assert code == OK, f"{command}: {errors}"
        for command in (
            "topics create other",
            "consume mail --group others -n 1",
            "users list",
            "acls list",
        ):
            code, output, errors = secured(command)
            assert code == REFUSED, f"{command}: {output}"
            assert "this user lacks" in errors, f"{command}: {errors}"
    finally:
        admin.write_text(settings)
