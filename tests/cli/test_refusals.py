"""Commands of a user without rights: each refusal names the right that is missing and the command
that grants it, and with those rights the command works."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator

import pytest

from kbroker.cli import run
from kbroker.cli.exits import OK, REFUSED
from kbroker.client.broker_process import RunningBroker
from kbroker.testing.broker import open_test_broker

Call = Callable[..., tuple[int, str]]
GRANT = re.compile(r"`(kbroker acls add --user NAME [^`]*)` (?:grants it|lets it)")
ADMIN = [
    "queues create jobs --scheduling true",
    "queues send jobs one",
    "queues create other",
    "topics create orders --partitions 2",
    "produce orders {lines}",
    "consume orders --group audit --from earliest -n 2",
    "share-consume orders --group readers -n 1",
    "configs set --topic orders retention.ms=86400000",
]
COMMANDS = [
    "topics create t-{user}",
    "topics describe orders",
    "topics alter orders --partitions {partitions}",
    "topics delete-records orders --to-end --yes",
    "topics delete orders",
    "configs set --topic orders retention.ms=86400000",
    "configs describe --topic orders",
    "configs describe --group jobs",
    "configs delete --topic orders retention.ms",
    "produce orders {lines}",
    "consume orders --from earliest -n 1",
    "consume orders --group audit-{user} --from earliest -n 2",
    "share-consume orders --group readers-{user} -n 1",
    "share-groups describe readers",
    "share-groups reset-offsets readers --topic orders --to-earliest --execute",
    "share-groups delete-offsets readers --topic orders",
    "share-groups delete readers",
    "groups describe audit",
    "groups reset-offsets audit --topic orders --to-earliest --execute",
    "groups delete-offsets audit --topic orders",
    "groups delete audit",
    "queues send jobs one",
    "queues send jobs one --delay 1h",
    "queues describe jobs",
    "queues peek jobs",
    "queues pause jobs",
    "queues resume jobs",
    "transactions producers orders",
    "quotas set --user app --produce-rate 1MB",
    "quotas list",
    "acls list",
    "acls add --user somebody --topic orders --operation read",
    "users list",
]
"""Those that delete something stand where later ones do not need it: each has users of its own, and
what it deletes is made again."""


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with open_test_broker(storage="memory", durability="os", protocol="SASL_PLAINTEXT") as running:
        yield running


@pytest.fixture
def call(broker: RunningBroker, capfd: pytest.CaptureFixture[str]) -> Call:
    """Runs a command line as a user, or as admin. Returns its exit code and what it wrote."""
    lines = broker.data_dir.parent / "lines"
    lines.write_text("one\ntwo\n")

    def run_line(line: str, user: str | None = None) -> tuple[int, str]:
        capfd.readouterr()
        place = ["-b", broker.bootstrap, "--command-config", str(broker.command_config(user))]
        code = run([*shlex.split(line.replace("{lines}", str(lines))), *place])
        output = capfd.readouterr()
        return code, output.out + output.err

    return run_line


@pytest.fixture
def user(broker: RunningBroker, request: pytest.FixtureRequest) -> str:
    """Without any right."""
    name = re.sub(r"\W+", "-", request.node.name)[-60:].strip("-")
    broker.create_user(name)
    return name


def grant(call: Call, errors: str, user: str) -> bool:
    """Do what the refusals say. Returns whether they say something."""
    found = sorted(set(GRANT.findall(errors)))
    for command in found:
        named = command.replace("NAME", user).replace("TOPIC", "orders").removeprefix("kbroker ")
        code, text = call(named)
        assert code == OK, text
    return bool(found)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_refusal_names_what_helps(command: str, call: Call, user: str) -> None:
    for line in ADMIN:
        call(line)
    if "groups delete-offsets" in command:  # A topic that the user may not describe looks missing.
        call(f"acls add --user {user} --topic orders --operation describe")
    line = command.replace("{user}", user).replace("{partitions}", "9")
    for _ in range(8):
        code, errors = call(line, user)
        if code == OK:
            return
        assert code == REFUSED, errors
        assert grant(call, errors, user), errors
    pytest.fail(errors)


def test_a_sender(call: Call, user: str) -> None:
    for line in ADMIN:
        call(line)
    assert call(f"acls add --sender --user {user} --topic jobs")[0] == OK
    for line in ("queues send jobs one", "queues send jobs one --delay 1h"):
        code, errors = call(line, user)
        assert code == OK, errors
