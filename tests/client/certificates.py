"""Certificates for tests: an authority, a broker, clients, and what goes wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from kbroker.client.certificates import Issued, client_certificate, new_authority, server_certificate


class Certificates(NamedTuple):
    """PEM files. `server` and `client` hold a key and a certificate."""

    ca: Path
    server: Path
    client: Path
    other_ca: Path
    other_host: Path
    expired: Path
    stranger: Path


def make_certificates(folder: Path) -> Certificates:
    """`other_host`, `expired` and `stranger` (a client of another authority) are not acceptable."""
    authority, other = new_authority("authority"), new_authority("other")
    files = Certificates(*(folder / f"{name}.pem" for name in Certificates._fields))
    files.ca.write_bytes(authority.certificate_pem())
    files.other_ca.write_bytes(other.certificate_pem())
    _write(files.server, server_certificate(authority, ["localhost", "127.0.0.1"], 1))
    _write(files.client, client_certificate(authority, "alice", 1))
    _write(files.other_host, server_certificate(authority, ["elsewhere.example.org"], 1))
    _write(files.expired, server_certificate(authority, ["127.0.0.1"], 0))
    _write(files.stranger, client_certificate(other, "mallory", 1))
    return files


def _write(path: Path, issued: Issued) -> None:
    path.write_bytes(issued.key_pem() + issued.certificate_pem())
