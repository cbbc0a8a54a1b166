"""`--command-config` and KBROKER_SECURITY_*: how commands reach a secured broker."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from kbroker.cli import run
from kbroker.cli.exits import OK, UNREACHABLE, USAGE
from kbroker.cli.params import Bootstrap, bootstrap_option
from kbroker.cli.security_options import PREFIX, VARIABLES
from kbroker.client.security import NAMES
from tests.client.fake_broker import FakeBroker, fake_broker
from tests.client.sasl_answers import SaslAnswers

LIST = ["topics", "list"]
SETTINGS = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.username": "alice",
    "sasl.password": "secret",
}


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBroker]:
    """It has one user, alice, and no topics."""
    with fake_broker(SaslAnswers()) as running:
        monkeypatch.setenv("KBROKER_BOOTSTRAP", f"127.0.0.1:{running.port}")
        yield running


def write(path: Path, settings: dict[str, str]) -> str:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(path)


def line(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr."""
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert output.err.startswith("kbroker: ")
    return output.err


def test_a_file(broker: FakeBroker, tmp_path: Path) -> None:
    assert run([*LIST, "--command-config", write(tmp_path / "f", SETTINGS)]) == OK


def test_the_file_of_an_environment_variable(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KBROKER_COMMAND_CONFIG", write(tmp_path / "f", SETTINGS))
    assert run(LIST) == OK


def test_the_environment(
    broker: FakeBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "password").write_text("secret\nnot this line\n")
    monkeypatch.setenv(f"{PREFIX}PROTOCOL", "SASL_PLAINTEXT")
    monkeypatch.setenv(f"{PREFIX}SASL_MECHANISM", "PLAIN")
    monkeypatch.setenv(f"{PREFIX}SASL_USERNAME", "alice")
    monkeypatch.setenv(f"{PREFIX}SASL_PASSWORD_FILE", str(tmp_path / "password"))
    monkeypatch.setenv(f"{PREFIX}SSL_CA_LOCATION", "")
    assert run(LIST) == OK
    capsys.readouterr()
    config = write(tmp_path / "f", {**SETTINGS, "sasl.username": "bob"})
    assert run([*LIST, "--command-config", config]) == UNREACHABLE
    assert "(user bob, SCRAM-SHA-256, " in line(capsys)  # The file replaces the environment.


def test_a_wrong_password(broker: FakeBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write(tmp_path / "f", {**SETTINGS, "sasl.password": "canary"})
    assert run([*LIST, "--json", "--command-config", config]) == UNREACHABLE
    text = line(capsys)
    assert text.startswith("kbroker: SASL authentication failed: Invalid username or password (user alice")
    assert "canary" not in text


def test_without_settings_the_line_names_the_option(
    broker: FakeBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(LIST) == UNREACHABLE
    assert "if its listener uses TLS or SASL, give --command-config with security.protocol" in line(capsys)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (
            "sasl.mechanims=PLAIN",
            "{file}: sasl.mechanims is not a security setting that kbroker knows; did you",
        ),
        ("a=b\n=c", "{file}:2: this line has no name"),
        ("sasl.username=a", "{file}: sasl.username is given without security.protocol"),
        ("security.protocol=SSL\nssl.ca.location=/no/file", "{file}: ssl.ca.location: cannot read /no/file"),
        (None, "cannot read {file}: No such file"),
    ],
)
def test_a_file_that_is_refused(
    content: str | None, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "f"
    if content is not None:
        file.write_text(content)
    assert run([*LIST, "--command-config", str(file)]) == USAGE
    assert text.format(file=file) in line(capsys)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("SASL_MECHANSIM", "PLAIN", f"SASL_MECHANSIM is no setting; did you mean {PREFIX}SASL_MECHANISM?"),
        ("SASL_PASSWORD", "canary", f"SASL_PASSWORD is no setting; did you mean {PREFIX}SASL_PASSWORD_FILE?"),
        ("PROTOCOL", "TLS", "the environment: security.protocol: 'TLS' is not one of"),
        ("SASL_PASSWORD_FILE", "/no/file", f"{PREFIX}SASL_PASSWORD_FILE: cannot read /no/file"),
    ],
)
def test_an_environment_that_is_refused(
    name: str,
    value: str,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(PREFIX + name, value)
    assert run(LIST) == USAGE
    found = line(capsys)
    assert text in found
    assert "canary" not in found


def test_an_empty_password_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "password").write_text("\n")
    monkeypatch.setenv(f"{PREFIX}SASL_PASSWORD_FILE", str(tmp_path / "password"))
    assert run(LIST) == USAGE
    assert "the first line of" in line(capsys)


def test_help_does_not_read_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{PREFIX}PROTOCOL", "nonsense")
    assert run([*LIST, "--help"]) == OK


def test_a_missing_password_is_asked_for_without_an_echo(broker: FakeBroker, tmp_path: Path) -> None:
    """At a real terminal."""
    config = write(tmp_path / "f", {n: v for n, v in SETTINGS.items() if n != "sasl.password"})
    pid, terminal = pty.fork()
    if pid == 0:
        command = [sys.executable, "-m", "kbroker", *LIST, "--command-config", config]
        os.execv(sys.executable, command)
    shown = _read_until(terminal, b"Password of alice: ")
    os.write(terminal, b"secret\n")
    shown += _read_until(terminal, None)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == OK, shown
    assert b"secret" not in shown


def test_no_terminal_to_ask_at(broker: FakeBroker, tmp_path: Path) -> None:
    config = write(tmp_path / "f", {n: v for n, v in SETTINGS.items() if n != "sasl.password"})
    ended = subprocess.run(
        [sys.executable, "-m", "kbroker", *LIST, "--command-config", config],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == USAGE
    assert "the password of alice is missing, and there is no terminal to ask at" in ended.stderr


def test_the_client_library_gets_the_same_settings(tmp_path: Path) -> None:
    from kbroker.cli.clients import ClientErrors, client_settings

    found: list[dict[str, Any]] = []

    @click.command()
    @bootstrap_option
    def command(bootstrap: Bootstrap) -> None:
        found.append(client_settings(bootstrap, ClientErrors(bootstrap)))

    with fake_broker(SaslAnswers()) as broker:
        address = f"127.0.0.1:{broker.port}"
        config = write(tmp_path / "f", SETTINGS)
        command.main(["-b", address, "--command-config", config], standalone_mode=False)
    assert {"bootstrap.servers": address, **SETTINGS}.items() <= found[0].items()


def test_every_setting_and_variable_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    section = text.split("\n## A secured broker\n")[1].split("\n## ")[0]
    unmentioned = {"sasl.mechanisms", "ssl.protocol", "ssl.enabled.protocols"}
    unmentioned |= {"ssl.truststore.type", "ssl.keystore.type"}
    assert [name for name in NAMES if name not in unmentioned and f"`{name}`" not in section] == []
    assert re.findall(rf"^\| `({PREFIX}\w+)`", section, re.MULTILINE) == list(VARIABLES)


def _read_until(terminal: int, end: bytes | None) -> bytes:
    """What the terminal shows, up to these bytes or to the end of the program."""
    shown = b""
    while end is None or end not in shown:
        try:
            chunk = os.read(terminal, 1000)
        except OSError:  # Linux: the program has ended
            break
        if not chunk:
            break
        shown += chunk
    return shown
