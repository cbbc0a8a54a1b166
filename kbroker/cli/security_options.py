"""How a command speaks to a secured broker: `--command-config FILE`, or KBROKER_SECURITY_* in the
environment.

The file has Kafka's names, so that one file serves Kafka's tools and kbroker. It replaces the
environment as a whole. A password comes from a file or from a person at the terminal, never from
the command line, which every user of the machine can read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from kbroker.client.security import ClientSecurity

PREFIX: Final = "KBROKER_SECURITY_"
VARIABLES: Final[Mapping[str, str]] = {
    f"{PREFIX}PROTOCOL": "security.protocol",
    f"{PREFIX}SASL_MECHANISM": "sasl.mechanism",
    f"{PREFIX}SASL_USERNAME": "sasl.username",
    f"{PREFIX}SASL_PASSWORD_FILE": "sasl.password",
    f"{PREFIX}SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL": "sasl.oauthbearer.token.endpoint.url",
    f"{PREFIX}SASL_OAUTHBEARER_CLIENT_ID": "sasl.oauthbearer.client.id",
    f"{PREFIX}SASL_OAUTHBEARER_CLIENT_SECRET_FILE": "sasl.oauthbearer.client.secret",
    f"{PREFIX}SASL_OAUTHBEARER_SCOPE": "sasl.oauthbearer.scope",
    f"{PREFIX}SSL_CA_LOCATION": "ssl.ca.location",
    f"{PREFIX}SSL_CERTIFICATE_LOCATION": "ssl.certificate.location",
    f"{PREFIX}SSL_KEY_LOCATION": "ssl.key.location",
    f"{PREFIX}SSL_KEY_PASSWORD_FILE": "ssl.key.password",
    f"{PREFIX}SSL_ENDPOINT_IDENTIFICATION_ALGORITHM": "ssl.endpoint.identification.algorithm",
    f"{PREFIX}ADMIN_TOKEN_FILE": "kbroker.admin.token",
}
"""Variables of the environment and the settings that they stand for. One that ends with _FILE names
a file whose first line is the value."""
_FOUND: Final = "kbroker.security"


def security_of(context: click.Context) -> ClientSecurity:
    """What --command-config or the environment says."""
    found: ClientSecurity = context.meta[_FOUND]
    return found


def _read(context: click.Context, param: click.Parameter, path: Path | None) -> None:
    from kbroker.client.security import ClientSecurity
    from kbroker.errors import OperatorError

    if context.resilient_parsing:
        return
    where = str(path) if path is not None else "the environment"
    try:
        settings = _of_environment() if path is None else _of_file(path)
        context.meta[_FOUND] = ClientSecurity.of(settings, ask_password)
    except OperatorError as error:
        text = str(error)
        raise click.UsageError(text if text.startswith(where) else f"{where}: {text}", context) from error


command_config_option = click.option(
    "--command-config",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    envvar="KBROKER_COMMAND_CONFIG",
    show_envvar=True,
    is_eager=True,
    expose_value=False,
    callback=_read,
    help="How to reach a secured broker: name=value lines with Kafka's names, such as "
    "security.protocol and sasl.mechanism.",
)
"""It passes nothing to the command: `security_of` has the result."""


def _of_file(path: Path) -> dict[str, str]:
    from kbroker.errors import OperatorError
    from kbroker.settings.properties import read_properties, read_text

    try:
        text = read_text(path)
    except OSError as error:
        raise OperatorError(f"cannot read {path}: {error.strerror}") from error
    return read_properties(text, str(path))


def _of_environment() -> dict[str, str]:
    from kbroker.client.security import nearest_name
    from kbroker.errors import OperatorError

    found = {}
    for variable in sorted(os.environ):
        value = os.environ[variable]
        if not variable.startswith(PREFIX) or not value:
            continue
        if variable not in VARIABLES:
            raise OperatorError(f"{variable} is no setting{nearest_name(variable, tuple(VARIABLES))}")
        found[VARIABLES[variable]] = (
            first_line(Path(value), variable) if variable.endswith("_FILE") else value
        )
    return found


def first_line(path: Path, where: str) -> str:
    """The first line of a file that has a secret, without its end. Raises OperatorError."""
    from kbroker.errors import OperatorError

    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise OperatorError(f"{where}: cannot read {path}: {reason}") from error
    if not lines or not lines[0]:
        raise OperatorError(f"{where}: the first line of {path} is empty")
    return lines[0]


def ask_password(user: str) -> str:
    """Ask at the terminal, without an echo. Raises OperatorError if there is none."""
    from kbroker.errors import OperatorError

    if not sys.stdin.isatty():
        raise OperatorError(
            f"the password of {user} is missing, and there is no terminal to ask at: add sasl.password, or "
            f"name a file with {PREFIX}SASL_PASSWORD_FILE"
        )
    password: str = click.prompt(f"Password of {user}", hide_input=True, err=True)
    return password
