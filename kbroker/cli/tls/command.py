"""`kbroker tls`: certificates for a trial, or for a network of one's own."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from kbroker.cli.exits import USAGE, CommandFailed
from kbroker.cli.suggesting import SuggestingGroup

_USER: Final = re.compile(r"[A-Za-z0-9._@-]+")
_ALWAYS: Final = ("localhost", "127.0.0.1", "::1")


@click.group(cls=SuggestingGroup)
def tls() -> None:
    """Make certificates, with which a broker encrypts its connections."""


def _user_names(context: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if not _USER.fullmatch(value) or len(value) > 64:
            raise click.BadParameter(
                f"{value!r} is not a name of at most 64 letters, digits, dots, dashes and @", context, param
            )
    return tuple(dict.fromkeys(values))


def _host_names(context: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if not value.isascii() or not re.fullmatch(r"[A-Za-z0-9*._:-]+", value):
            raise click.BadParameter(f"{value!r} is neither a host name nor an IP address", context, param)
    return values


@tls.command()
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--name",
    "names",
    metavar="HOST",
    multiple=True,
    callback=_host_names,
    help="A further host name or IP address by which clients reach the broker, beside localhost, "
    "127.0.0.1, ::1 and this machine's name; may be repeated.",
)
@click.option(
    "--client",
    "clients",
    metavar="USER",
    multiple=True,
    callback=_user_names,
    help="Also make a certificate with which this user logs in (mutual TLS), client-USER.pem; may "
    "be repeated.",
)
@click.option(
    "--days",
    type=click.IntRange(1, 3650),
    default=825,
    show_default=True,
    help="How long the certificates are valid; that of the authority is for ten years.",
)
def init(directory: Path, names: tuple[str, ...], clients: tuple[str, ...], days: int) -> None:
    """Make certificates in DIR: an authority, and one for the broker that it signs.

    Prints the lines for the configuration files of the broker and of clients. ca.pem is for all
    clients, server.pem for the broker. Keep ca.key secret, and elsewhere: with it anybody can make
    certificates that your clients trust. All files have mode 0600; existing files are not replaced.
    Needs the extra kbroker[security].

    \b
    Examples:
      kbroker tls init certificates
      kbroker tls init certificates --name broker.example.org --client alice
    """
    try:
        from kbroker.client import certificates
    except ImportError as error:
        raise CommandFailed(
            "certificates need the package cryptography: pip install cryptography", USAGE
        ) from error

    hosts = list(dict.fromkeys((*names, *_ALWAYS, socket.gethostname())))
    directory = directory.absolute()
    files = [directory / name for name in ("ca.pem", "ca.key", "server.pem", *map(_client_file, clients))]
    if present := [path for path in files if path.exists()]:
        raise CommandFailed(f"{present[0]} exists, and is not replaced: choose another directory")
    directory.mkdir(parents=True, exist_ok=True)
    authority = certificates.new_authority(f"kbroker authority of {socket.gethostname()}")
    server = certificates.server_certificate(authority, hosts, days)
    certificates.write_private(directory / "ca.key", authority.key_pem())
    certificates.write_private(directory / "ca.pem", authority.certificate_pem())
    certificates.write_private(directory / "server.pem", server.key_pem(), server.certificate_pem())
    for user in clients:
        issued = certificates.client_certificate(authority, user, days)
        certificates.write_private(directory / _client_file(user), issued.key_pem(), issued.certificate_pem())
    for line in _instructions(directory, hosts, clients):
        click.echo(line)


def _client_file(user: str) -> str:
    return f"client-{user}.pem"


def _instructions(directory: Path, hosts: Sequence[str], clients: Sequence[str]) -> list[str]:
    """`hosts`: those of the certificate; the first is that of --name, if there is one."""
    protocol = "SSL" if clients else "SASL_SSL"
    lines = [
        f"# certificates for {', '.join(hosts)}",
        "",
        "# for the broker: kbroker start --config-file FILE",
        *_listener(protocol, hosts[0]),
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={directory / 'server.pem'}",
    ]
    if clients:
        lines += [
            "ssl.client.auth=required",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={directory / 'ca.pem'}",
        ]
    else:
        lines.append("sasl.enabled.mechanisms=SCRAM-SHA-256")
    for user in clients or ("",):
        lines += [
            "",
            f"# for {user or 'clients'}: --command-config FILE",
            f"security.protocol={protocol}",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={directory / 'ca.pem'}",
        ]
        if user:
            lines += ["ssl.keystore.type=PEM", f"ssl.keystore.location={directory / _client_file(user)}"]
        else:
            lines += [
                "sasl.mechanism=SCRAM-SHA-256",
                "# made by `kbroker users create NAME`; kbroker's commands ask for the password",
                "sasl.username=NAME",
            ]
    return lines


def _listener(protocol: str, host: str) -> list[str]:
    """On all addresses of the machine, if clients have a name for it."""
    if host in _ALWAYS:
        return [f"listeners={protocol}://127.0.0.1:9093"]
    name, everywhere = (f"[{host}]", "[::]") if ":" in host else (host, "0.0.0.0")
    return [f"listeners={protocol}://{everywhere}:9093", f"advertised.listeners={protocol}://{name}:9093"]
