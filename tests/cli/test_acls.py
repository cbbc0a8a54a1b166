"""`kbroker acls`: which entries its options mean."""

from __future__ import annotations

import json
import os
import pty
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.cli import run
from kbroker.cli.exits import DATA_DIRECTORY, OK, REFUSED, USAGE
from kbroker.errors import ErrorCode
from kbroker.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from kbroker.storage.data_dir import SECURITY_FORMAT, DataDirectory
from kbroker.testing.broker import open_test_broker
from tests.client.acl_answers import AclAnswers
from tests.client.fake_broker import fake_broker


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[AclAnswers]:
    found = AclAnswers()
    with fake_broker(found) as running:
        monkeypatch.setenv("KBROKER_BOOTSTRAP", f"127.0.0.1:{running.port}")
        yield found


def entry(
    kind: str,
    name: str,
    operation: str,
    user: str = "app",
    *,
    prefixed: bool = False,
    deny: bool = False,
    host: str = "*",
) -> Acl:
    return Acl(
        ResourceType[kind],
        PatternType.PREFIXED if prefixed else PatternType.LITERAL,
        name,
        f"User:{user}",
        host,
        Operation[operation],
        Permission.DENY if deny else Permission.ALLOW,
    )


TOPIC_READ = entry("TOPIC", "orders", "READ")
WORKER = [TOPIC_READ, entry("TOPIC", "orders", "DESCRIBE"), entry("GROUP", "orders", "READ")]


@pytest.mark.parametrize(
    ("options", "added"),
    [
        ("--worker -u app -t orders", WORKER),
        ("--worker -u app -t orders -g w", [*WORKER[:2], entry("GROUP", "w", "READ")]),
        ("--sender -u app -t orders -g w", [
            entry("TOPIC", "orders", "WRITE"),
            entry("TOPIC", "orders", "DESCRIBE"),
            entry("TOPIC", "orders", "DESCRIBE_CONFIGS"),
            entry("GROUP", "w", "DESCRIBE"),
            entry("GROUP", "w", "DESCRIBE_CONFIGS"),
        ]),
        ("--consumer -u app -t orders -g audit", [*WORKER[:2], entry("GROUP", "audit", "READ")]),
        (
            "--producer -u app -t orders --transactional-id t",
            [
                entry("TOPIC", "orders", "WRITE"),
                entry("TOPIC", "orders", "DESCRIBE"),
                entry("TOPIC", "orders", "CREATE"),
                entry("TRANSACTIONAL_ID", "t", "WRITE"),
                entry("TRANSACTIONAL_ID", "t", "DESCRIBE"),
            ],
        ),
        ("-u app -t orders -o read", [TOPIC_READ]),
        ("-u app -t * -o READ", [entry("TOPIC", "*", "READ")]),
        (
            "-u app -u bob -t a -t b -o read -o alter-configs",
            [
                entry("TOPIC", name, operation, user)
                for name in "ab"
                for operation in ("READ", "ALTER_CONFIGS")
                for user in ("app", "bob")
            ],
        ),
        ("-u * --cluster -o describe", [entry("CLUSTER", "kafka-cluster", "DESCRIBE", "*")]),
        (
            "-u CN=a,O=b -t x. --prefixed -o all --deny --host 10.0.0.1",
            [entry("TOPIC", "x.", "ALL", "CN=a,O=b", prefixed=True, deny=True, host="10.0.0.1")],
        ),
        (
            "-u * --cluster -o all --deny --host 10.0.0.0/8 --host 2001:db8::/32 --host ::1",
            [
                entry("CLUSTER", "kafka-cluster", "ALL", "*", deny=True, host=host)
                for host in ("10.0.0.0/8", "2001:db8::/32", "::1")
            ],
        ),
        ("-u app -t . --prefixed -o read", [entry("TOPIC", ".", "READ", prefixed=True)]),
        ("--worker -u app -t x. --prefixed", [
            entry("TOPIC", "x.", "READ", prefixed=True),
            entry("TOPIC", "x.", "DESCRIBE", prefixed=True),
            entry("GROUP", "x.", "READ", prefixed=True),
        ]),
    ],
)  # fmt: skip
def test_add(options: str, added: list[Acl], answers: AclAnswers, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["acls", "add", *options.split()]) == OK
    assert answers.acls == added
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(added)
    assert run(["acls", "add", *options.split(), "--json"]) == OK  # Nothing is added twice.
    assert answers.acls == added
    rows = json.loads(capsys.readouterr().out)
    assert [row["principal"] for row in rows] == [acl.principal for acl in added]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("-t orders -o read", "--user is needed"),
        ("-u app -t orders", "and --operation are needed"),
        ("-u app -o read", "a resource (--topic, --group, --transactional-id or --cluster)"),
        ("-u app -g g -o write", "a group has no operation write: it has read, delete, describe"),
        ("-u app --worker", "--worker needs --topic"),
        ("-u app --consumer -t t", "--consumer needs --group"),
        ("-u app --producer -t t -g g", "--producer takes --topic and --transactional-id only"),
        ("-u app --worker -t t --cluster", "--worker takes --topic and --group only"),
        ("-u app --worker -t t -o read", "--worker and --operation exclude each other"),
        ("-u app --worker -t t --deny", "--worker and --deny exclude each other"),
        ("-u app -t * --prefixed -o read", "--prefixed goes with the beginning of a name"),
        ("-u app --cluster --prefixed -o read", "--prefixed goes with the beginning of a name"),
        ("-u app -t t -o fly", "'fly' is not one of"),
        ("-u app -t t -o read --host 10.0.0.0/33", "--host 10.0.0.0/33: Invalid CIDR notation '10.0.0.0/33'"),
        (
            "-u app -t t -o read --host a/b",
            "--host a/b: Invalid CIDR notation 'a/b': expected an IPv4 address",
        ),
        ("-u app -t t -o read --host localhost", "--host localhost: the IP address of a client is needed"),
        ("-u app -t t -o read --host fe80::1%lo", "--host fe80::1%lo: the IP address of a client is needed"),
        ("-u app -t t -o read --host 0.0.0.0", "--host 0.0.0.0: the IP address of a client is needed"),
        ("-u User:app -t t -o read", "--user User:app: only the name is needed, app"),
        ("-u app -t secret* -o read --deny", "--topic secret*: no topic has such a name; --prefixed means"),
        ("-u app -t secret* -o read --prefixed", "--topic secret*: no topic has such a name"),
    ],
)
def test_add_wrongly(options: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["acls", "add", *options.split()]) == USAGE
    assert text in capsys.readouterr().err


def test_entries_that_the_broker_refuses(answers: AclAnswers, capsys: pytest.CaptureFixture[str]) -> None:
    answers.refused = {"b"}
    assert run(["acls", "add", *["-u", "app", "-t", "a", "-t", "b", "-o", "read", "--json"]]) == REFUSED
    output = capsys.readouterr()
    assert [row["name"] for row in json.loads(output.out)] == ["a"]
    assert output.err == "kbroker: allow User:app read on topic b: not this one\n"


@pytest.mark.parametrize("command", ["list", "add -u a -t t -o read", "remove --all --yes"])
def test_a_broker_without_an_authorizer(
    command: str, answers: AclAnswers, capsys: pytest.CaptureFixture[str]
) -> None:
    answers.refusal = ErrorCode.security_disabled
    assert run(["acls", *command.split()]) == REFUSED
    why = "the broker has no authorizer, so every client may do everything: set authorizer.class.name"
    assert capsys.readouterr().err == f"kbroker: {why}\n"


PRESENT = [
    TOPIC_READ,
    entry("TOPIC", "orders", "WRITE", "shop"),
    entry("TOPIC", "ord", "READ", prefixed=True),
    entry("TOPIC", "*", "DESCRIBE", "*"),
    entry("TOPIC", "orders-2", "READ", deny=True),
    entry("GROUP", "orders", "READ"),
]


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ("", PRESENT),
        ("-t orders", PRESENT[:4]),
        ("-t orders -u app", [PRESENT[0], PRESENT[2]]),
        ("-t orders -t orders-2 -o read", [PRESENT[0], PRESENT[2], PRESENT[4]]),
        ("-t ord --prefixed", [PRESENT[2]]),
        ("--prefixed", [PRESENT[2]]),
        ("-g orders", [PRESENT[5]]),
        ("-u nobody", []),
    ],
)
def test_list(
    options: str, shown: list[Acl], answers: AclAnswers, capsys: pytest.CaptureFixture[str]
) -> None:
    answers.acls = list(PRESENT)
    assert run(["acls", "list", *options.split(), "--json"]) == OK
    rows = json.loads(capsys.readouterr().out)
    found = [(row["name"], row["pattern"], row["principal"], row["operation"]) for row in rows]
    assert sorted(found) == sorted(
        (acl.name, acl.pattern.name.lower(), acl.principal, acl.operation.name.lower()) for acl in shown
    )
    assert run(["acls", "list", *options.split()]) == OK
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == (1 + len(shown) if shown else 1)


@pytest.mark.parametrize(
    ("options", "removed"),
    [
        ("--all", PRESENT),
        ("-t orders", PRESENT[:2]),
        ("-u app --allow", [PRESENT[0], PRESENT[2], PRESENT[5]]),
        ("-u app --deny", [PRESENT[4]]),
        ("-o write -o describe", [PRESENT[1], PRESENT[3]]),
        ("-t ord --prefixed", [PRESENT[2]]),
        ("--consumer -u app -t orders -g orders", [PRESENT[0], PRESENT[5]]),
    ],
)
def test_remove(
    options: str, removed: list[Acl], answers: AclAnswers, capsys: pytest.CaptureFixture[str]
) -> None:
    answers.acls = list(PRESENT)
    assert run(["acls", "remove", *options.split(), "--yes"]) == OK
    assert answers.acls == [acl for acl in PRESENT if acl not in removed]
    text = "1 entry" if len(removed) == 1 else f"{len(removed)} entries"
    assert capsys.readouterr().out == f"removed {text}\n"


def test_entries_that_match_nothing_can_be_listed_and_removed(
    answers: AclAnswers, capsys: pytest.CaptureFixture[str]
) -> None:
    """ACL-5: a choice compares the text of the host."""
    odd = [
        entry("TOPIC", "secret*", "READ", "User:app", host=host)
        for host in ("localhost", "a/b", "10.0.0.0/8")
    ]
    answers.acls = [*odd, entry("TOPIC", "orders", "READ", host="10.0.0.1")]
    options = ["-u", "User:app", "-t", "secret*"]
    assert run(["acls", "list", *options, "--host", "a/b", "--json"]) == OK
    assert [row["host"] for row in json.loads(capsys.readouterr().out)] == ["a/b"]
    assert run(["acls", "remove", *options, "--host", "localhost", "--host", "a/b", "--yes"]) == OK
    assert run(["acls", "remove", "--host", "10.0.0.0/8", "--yes"]) == OK
    assert [acl.host for acl in answers.acls] == ["10.0.0.1"]


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ("", USAGE, "either --all or a choice is needed"),
        ("--all -u app", USAGE, "either --all or a choice is needed"),
        ("-u app --allow --deny", USAGE, "--deny and --allow exclude each other"),
        ("-u nobody --yes", REFUSED, "there are no such entries"),
    ],
)
def test_remove_wrongly(
    options: str, code: int, text: str, answers: AclAnswers, capsys: pytest.CaptureFixture[str]
) -> None:
    answers.acls = list(PRESENT)
    assert run(["acls", "remove", *options.split()]) == code
    assert text in capsys.readouterr().err
    assert answers.acls == PRESENT


@pytest.mark.parametrize("answer", [b"y\n", b"n\n"])
def test_remove_asks(answer: bytes, answers: AclAnswers) -> None:
    answers.acls = list(PRESENT)
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "kbroker", "acls", "remove", "-u", "shop"])
    shown = b""
    while b"Remove 1 entry? [y/N]" not in shown:
        shown += os.read(terminal, 1000)
    os.write(terminal, answer)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert b"User:shop" in shown
    assert os.waitstatus_to_exitcode(status) == (OK if answer == b"y\n" else REFUSED)
    assert (PRESENT[1] in answers.acls) == (answer == b"n\n")


def test_in_the_data_directory_of_a_stopped_broker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data_dir = tmp_path / "data"
    place = ["--data-dir", str(data_dir)]
    assert run(["acls", "list", *place]) == DATA_DIRECTORY
    assert f"there is no directory {data_dir}" in capsys.readouterr().err
    with open_test_broker(data_dir=data_dir) as broker:
        assert run(["acls", "list", *place]) == DATA_DIRECTORY
        assert f"{data_dir} is in use by another broker (process {broker.pid})" in capsys.readouterr().err
    assert run(["acls", "list", *place, "-b", "127.0.0.1:1"]) == USAGE
    for _ in range(2):  # Nothing is added twice.
        assert run(["acls", "add", "--worker", "-u", "app", "-t", "orders", *place]) == OK
        assert run(["acls", "add", "--deny", "-u", "*", "-t", "secret", "-o", "all", *place]) == OK
    capsys.readouterr()
    assert run(["acls", "list", *place, "-u", "app", "--json"]) == OK
    rows = json.loads(capsys.readouterr().out)
    assert [(row["type"], row["operation"]) for row in rows] == [
        ("topic", "read"),
        ("topic", "describe"),
        ("group", "read"),
    ]
    assert run(["acls", "remove", *place, "-u", "*", "--deny", "--yes"]) == OK
    assert capsys.readouterr().out == "removed 1 entry\n"
    assert run(["acls", "list", *place, "--json"]) == OK
    assert json.loads(capsys.readouterr().out) == rows
    with DataDirectory.inspect(data_dir) as directory:
        assert directory.description.format_version == SECURITY_FORMAT
