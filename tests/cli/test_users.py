"""`kbroker users`: through a broker, and in the data directory of a stopped one."""

from __future__ import annotations

import json
import os
import pty
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.index import api_key_map, schema_name_map

from kbroker import plugins
from kbroker.cli import run
from kbroker.cli.exits import DATA_DIRECTORY, OK, REFUSED, UNREACHABLE, USAGE
from kbroker.client.rpc import Connection
from kbroker.errors import ErrorCode
from kbroker.formats.security_values import ScramCredential, ScramKey, ScramMechanism
from kbroker.security.scram import DIGESTS, credential_of, is_password, salt_password
from kbroker.storage.data_dir import SECURITY_FORMAT, DataDirectory
from kbroker.testing.broker import free_port, open_test_broker
from tests.client.fake_broker import FakeBroker, fake_broker

ENGINES = ["segment", "lmdb", "rocksdb"]
SHA_256, SHA_512 = ScramMechanism


class UserAnswers:
    """APIs 50 and 51, as Kafka answers them: credentials are derived from salted passwords."""

    def __init__(self) -> None:
        self.credentials: dict[tuple[str, int], ScramCredential] = {}
        self.to_disconnect: ErrorCode | None = None
        """How it answers mechanism 127, which is kbroker's own; None: as Kafka does."""
        self.refusal = ErrorCode.none

    def __call__(self, key: int, version: int, request: Any) -> dict[str, Any] | None:
        match key:
            case 18:
                return {"error_code": ErrorCode.none, "api_keys": _rows(18, 50, 51)}
            case 50:
                return self._described()
            case 51:
                return {"results": [self._altered(row) for row in (*request.deletions, *request.upsertions)]}
        return None

    def _described(self) -> dict[str, Any]:
        users = sorted({user for user, _ in self.credentials})
        results = [
            {
                "user": name,
                "error_code": ErrorCode.none,
                "error_message": None,
                "credential_infos": [
                    {"mechanism": mechanism, "iterations": each.iterations}
                    for (user, mechanism), each in self.credentials.items()
                    if user == name
                ],
            }
            for name in users
        ]
        return {"error_code": self.refusal, "error_message": None, "results": results}

    def _altered(self, row: Any) -> dict[str, Any]:
        code = ErrorCode.none
        if row.mechanism not in ScramMechanism.__members__.values():
            unsupported = ErrorCode.unsupported_sasl_mechanism
            code = unsupported if self.to_disconnect is None else self.to_disconnect
        elif hasattr(row, "salt"):
            digest = DIGESTS[ScramMechanism(row.mechanism)]
            self.credentials[row.name, row.mechanism] = credential_of(
                row.salted_password, row.salt, row.iterations, digest
            )
        elif self.credentials.pop((row.name, row.mechanism), None) is None:
            code = ErrorCode.resource_not_found
        return {"user": row.name, "error_code": code, "error_message": None}


def _rows(*keys: int) -> list[dict[str, int]]:
    return [
        {"api_key": key, "min_version": 0, "max_version": max(schema_name_map[api_key_map[key]])}
        for key in keys
    ]


@pytest.fixture
def answers() -> UserAnswers:
    return UserAnswers()


@pytest.fixture
def broker(answers: UserAnswers, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBroker]:
    with fake_broker(answers) as running:
        monkeypatch.setenv("KBROKER_BOOTSTRAP", f"127.0.0.1:{running.port}")
        yield running


@pytest.fixture
def password(tmp_path: Path) -> str:
    """The name of a file with a password."""
    path = tmp_path / "password"
    path.write_text("canary-1\nnot this line")
    return str(path)


def fits(credential: ScramCredential, mechanism: ScramMechanism, password: str) -> bool:
    digest = DIGESTS[mechanism]
    salted = salt_password(password.encode(), credential.salt, credential.iterations, digest)
    return is_password(credential, salted, digest)


def stored(data_dir: Path) -> dict[tuple[str, ScramMechanism], ScramCredential]:
    """What a data directory has."""
    with DataDirectory.inspect(data_dir) as directory:
        assert directory.description.format_version == SECURITY_FORMAT
        reader = plugins.state_store_factory(directory.description.state_engine).open_reader(
            directory.state_path
        )
        found = {}
        for key, value in reader.scan(ScramKey.namespace):
            parsed = ScramKey.parse(key.removeprefix(ScramKey.namespace))
            assert parsed is not None
            found[parsed.user, parsed.mechanism] = parsed.decode_value(value)
        reader.close()
    return found


def test_create_alter_list_and_delete(
    broker: FakeBroker,
    answers: UserAnswers,
    password: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["users", "list"]) == OK
    assert "there are no users" in capsys.readouterr().out
    assert run(["users", "create", "alice", "--password-file", password]) == OK
    assert capsys.readouterr().out == "created user alice (SCRAM-SHA-256, 8192 iterations)\n"
    first = answers.credentials["alice", 1]
    assert fits(first, SHA_256, "canary-1")
    assert len(first.salt) >= 16

    (tmp_path / "other").write_text("canary-2")
    more = ["--mechanism", "scram-sha-512", "--iterations", "4096"]
    assert run(["users", "alter", "alice", "--password-file", str(tmp_path / "other"), *more]) == OK
    assert fits(answers.credentials["alice", 2], SHA_512, "canary-2")
    assert answers.credentials["alice", 1] is first
    assert run(["users", "alter", "alice", "--password-file", str(tmp_path / "other")]) == OK
    assert all(
        fits(answers.credentials["alice", mechanism], mechanism, "canary-2") for mechanism in ScramMechanism
    )

    capsys.readouterr()
    assert run(["users", "list"]) == OK
    assert capsys.readouterr().out.splitlines()[1:] == [
        "alice  SCRAM-SHA-256        8192",
        "alice  SCRAM-SHA-512        8192",
    ]
    assert run(["users", "delete", "alice", "--mechanism", "SCRAM-SHA-256"]) == OK
    assert "which keeps SCRAM-SHA-512" in capsys.readouterr().out
    assert run(["users", "delete", "alice", "--json"]) == OK
    assert json.loads(capsys.readouterr().out) == {"user": "alice", "deleted": ["SCRAM-SHA-512"]}
    assert answers.credentials == {}


def test_connections_are_ended(
    broker: FakeBroker, answers: UserAnswers, password: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--password-file", password]
    assert run(["users", "create", "alice", *given]) == OK
    answers.to_disconnect = ErrorCode.none
    capsys.readouterr()
    assert run(["users", "alter", "alice", *given, "--disconnect"]) == OK
    assert capsys.readouterr().out.endswith("iterations), and ended its connections\n")
    assert run(["users", "alter", "alice", *given, "--disconnect", "--json"]) == OK
    assert json.loads(capsys.readouterr().out)["disconnected"] is True
    answers.to_disconnect = ErrorCode.resource_not_found
    assert run(["users", "delete", "alice", "--disconnect"]) == OK
    assert capsys.readouterr().out == "deleted user alice, which had no connection\n"
    assert run(["users", "create", "alice", *given]) == OK
    capsys.readouterr()
    assert run(["users", "delete", "alice", "--disconnect", "--json"]) == OK
    deleted = {"user": "alice", "deleted": ["SCRAM-SHA-256"], "disconnected": False}
    assert json.loads(capsys.readouterr().out) == deleted

    answers.to_disconnect = None
    assert run(["users", "create", "alice", *given]) == OK
    capsys.readouterr()
    assert run(["users", "delete", "alice", "--disconnect"]) == REFUSED
    assert capsys.readouterr().err == "kbroker: only kbroker can end the connections of a user\n"
    assert answers.credentials == {}


def test_json_has_no_secret(broker: FakeBroker, password: str, capsys: pytest.CaptureFixture[str]) -> None:
    both = ["--mechanism", "SCRAM-SHA-256", "--mechanism", "SCRAM-SHA-512", "--password-file", password]
    assert run(["users", "create", "alice", *both, "--json"]) == OK
    user = {
        "user": "alice",
        "credentials": [
            {"mechanism": "SCRAM-SHA-256", "iterations": 8192},
            {"mechanism": "SCRAM-SHA-512", "iterations": 8192},
        ],
    }
    assert json.loads(capsys.readouterr().out) == user
    assert run(["users", "list", "--json"]) == OK
    assert json.loads(capsys.readouterr().out) == [user]


def test_what_is_refused(broker: FakeBroker, password: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["users", "alter", "bob", "--password-file", password]) == REFUSED
    assert "there is no user bob" in capsys.readouterr().err
    assert run(["users", "delete", "bob"]) == REFUSED
    assert run(["users", "create", "bob", "--password-file", password]) == OK
    assert run(["users", "create", "bob", "--password-file", password]) == REFUSED
    assert "user bob exists: `kbroker users alter`" in capsys.readouterr().err
    assert run(["users", "delete", "bob", "--mechanism", "SCRAM-SHA-512"]) == REFUSED
    assert "user bob has no SCRAM-SHA-512" in capsys.readouterr().err


def test_a_broker_that_does_not_allow_it(
    broker: FakeBroker, answers: UserAnswers, capsys: pytest.CaptureFixture[str]
) -> None:
    answers.refusal = ErrorCode.cluster_authorization_failed
    assert run(["users", "list"]) == REFUSED
    assert capsys.readouterr().err == (
        "kbroker: this user lacks DESCRIBE on the cluster: "
        "`kbroker acls add --user NAME --cluster --operation describe` grants it\n"
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["create", "x" * 256], "NAME has 256 bytes: at most 255"),
        (["create", " "], "must not be empty"),
        (["create", "a", "--iterations", "4095"], "is not in the range"),
        (["create", "a", "--mechanism", "PLAIN"], "'PLAIN' is not one of"),
        (["create", "a", "--password-file", "/no/file"], "cannot read /no/file"),
        (["create", "a"], "there is no terminal to ask for a password at: give --password-file"),
        (["list", "--data-dir", "d", "-b", "a:1"], "--data-dir and --bootstrap-server exclude each other"),
        (["delete", "a", "--data-dir", "d", "--disconnect"], "--disconnect needs a running broker"),
        (["alter", "a", "--data-dir", "d", "--disconnect"], "--disconnect needs a running broker"),
    ],
)
def test_wrong_usage(
    arguments: list[str],
    text: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        assert run(["users", *arguments]) == USAGE
    output = capsys.readouterr()
    assert text in output.err
    assert output.err.count("\n") == 1


def test_no_broker(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["users", "list", "-b", "127.0.0.1:1"]) == UNREACHABLE
    assert "cannot connect" in capsys.readouterr().err


def test_a_password_is_typed_twice_without_an_echo(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    pid, terminal = pty.fork()
    if pid == 0:
        command = [sys.executable, "-m", "kbroker", "users", "create", "alice", "--data-dir", str(data_dir)]
        os.execv(sys.executable, command)
    shown = b""
    for prompt in (b"New password of alice: ", b"Repeat for confirmation: "):
        while prompt not in shown:
            shown += os.read(terminal, 1000)
        os.write(terminal, b"canary-typed\n")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == OK, shown
    assert b"canary" not in shown
    assert fits(stored(data_dir)["alice", SHA_256], SHA_256, "canary-typed")


def test_a_typed_password_that_is_no_utf_8_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("click.prompt", lambda *_, **__: "canary\udcff")
    assert run(["users", "create", "alice", "--data-dir", str(tmp_path / "data")]) == USAGE
    assert capsys.readouterr().err == "kbroker: the password is not UTF-8\n"


@pytest.mark.parametrize("engine", ENGINES)
def test_the_first_user_of_a_new_directory(
    engine: str, tmp_path: Path, password: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data_dir = tmp_path / "data"
    place = ["--data-dir", str(data_dir)]
    create = ["users", "create", "--password-file", password, "--storage", engine, *place]
    assert run([*create, "admin"]) == OK
    assert run([*create, "\u017eofie", "--mechanism", "SCRAM-SHA-512"]) == OK
    assert run([*create, "admin"]) == REFUSED
    found = stored(data_dir)
    assert list(found) == [("admin", SHA_256), ("\u017eofie", SHA_512)]
    assert all(fits(each, mechanism, "canary-1") for (_, mechanism), each in found.items())
    assert run(["users", "delete", "admin", *place]) == OK
    assert list(stored(data_dir)) == [("\u017eofie", SHA_512)]
    capsys.readouterr()
    assert run(["users", "list", *place]) == OK
    assert capsys.readouterr().out.splitlines()[1:] == ["\u017eofie  SCRAM-SHA-512        8192"]
    assert b"canary" not in b"".join(path.read_bytes() for path in data_dir.rglob("*") if path.is_file())


def test_users_made_without_a_broker_cannot_be_told_from_others(tmp_path: Path, password: str) -> None:
    """A user that does not exist has the same salt after a restart, too."""
    data_dir = tmp_path / "data"
    create = ["users", "create", "--password-file", password, "--data-dir", str(data_dir)]
    config = {
        "listeners": f"SASL_PLAINTEXT://127.0.0.1:{(port := free_port())}",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    }

    def salts() -> list[str]:
        with open_test_broker(data_dir=data_dir, storage="segment", config=config, port=port):
            return [salt_of(port, user) for user in ("admin", "nobody")]

    assert run([*create, "admin"]) == OK
    before = salts()
    assert run([*create, "alice"]) == OK
    assert salts() == before


def salt_of(port: int, user: str) -> str:
    """As a client without a password sees it."""
    with Connection("127.0.0.1", port) as connection:
        connection.call("sasl_handshake", 1, mechanism="SCRAM-SHA-256")
        answer = connection.call("sasl_authenticate", 2, auth_bytes=f"n,,n={user},r=nonce".encode())
        return str(answer.auth_bytes.decode().split(",")[1])


def test_a_directory_that_a_broker_has_used(
    tmp_path: Path, password: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data_dir = tmp_path / "data"
    create = ["users", "create", "admin", "--password-file", password, "--data-dir", str(data_dir)]
    with open_test_broker(data_dir=data_dir, storage="segment") as broker:
        broker.create_topic("orders")
        assert run(create) == DATA_DIRECTORY
        assert f"{data_dir} is in use by another broker (process {broker.pid})" in capsys.readouterr().err
        broker.stop()
        assert run(create) == OK
        broker.start()  # It reads the newer format, and still has its topic.
        with broker.connect() as connection:
            from kbroker.client import admin

            assert [topic.name for topic in admin.topics(connection)] == ["orders"]
    assert list(stored(data_dir)) == [("admin", SHA_256)]


def test_directories_that_are_no_brokers(
    tmp_path: Path, password: str, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "none"
    for command in (["list"], ["delete", "a"], ["alter", "a", "--password-file", password]):
        assert run(["users", *command, "--data-dir", str(missing)]) == DATA_DIRECTORY
        assert f"there is no directory {missing}" in capsys.readouterr().err
    assert not missing.exists()
    create = ["users", "create", "a", "--password-file", password, "--data-dir", str(missing)]
    assert run([*create, "--storage", "memory"]) == DATA_DIRECTORY
    assert run([*create, "--storage", "floppy"]) == DATA_DIRECTORY
    assert not missing.exists()
