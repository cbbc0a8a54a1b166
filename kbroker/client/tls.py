"""TLS for a client's connection, and its errors in words.

The broker's certificate is always checked against the trusted authorities; only the check of the
host's name can be turned off. Nothing older than TLS 1.2 is spoken.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kbroker.client.keystores import Pem
from kbroker.client.security import Tls
from kbroker.client.unreachable import BrokerUnreachable
from kbroker.errors import OperatorError

_NOT_YET_VALID, _EXPIRED, _OTHER_NAMES = 9, 10, (62, 64)
"""OpenSSL's X509_V_ERR_*: the last two are a wrong host name and a wrong IP address."""
_ALERTS: Final = {
    "CERTIFICATE_REQUIRED": "requires a client certificate: add ssl.certificate.location, ssl.key.location",
    "HANDSHAKE_FAILURE": "accepts none of this client's ciphers, or requires a client certificate "
    "(ssl.certificate.location and ssl.key.location)",
    "UNKNOWN_CA": "does not trust the authority of this client's certificate (ssl.certificate.location)",
    "BAD_CERTIFICATE": "does not accept this client's certificate (ssl.certificate.location)",
    "CERTIFICATE_UNKNOWN": "does not accept this client's certificate (ssl.certificate.location)",
    "CERTIFICATE_EXPIRED": "does not accept this client's certificate: it has expired",
    "CERTIFICATE_REVOKED": "does not accept this client's certificate: it was revoked",
    "PROTOCOL_VERSION": "speaks no version of TLS that this client speaks (1.2 or 1.3)",
}
"""Ends of OpenSSL's names for what the other side said before it hung up."""
_NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNEXPECTED_EOF", "RECORD_LAYER_FAILURE")
_PLAIN_SIDE: Final = "is it a listener without TLS? then security.protocol is PLAINTEXT or SASL_PLAINTEXT"


def wrapped(plain: socket.socket, host: str, address: str, tls: Tls) -> ssl.SSLSocket:
    """The connection after the handshake. `address`: for errors. Raises BrokerUnreachable, and
    OperatorError for certificates that cannot be used."""
    context = context_of(tls)
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise BrokerUnreachable(not_trusted(address, error)) from error
    except TimeoutError as error:
        raise BrokerUnreachable(f"{address} did not answer the TLS handshake; {_PLAIN_SIDE}") from error
    except OSError as error:
        raise BrokerUnreachable(f"TLS with {address} failed: {said(address, error)}") from error


def context_of(tls: Tls) -> ssl.SSLContext:
    """Raises OperatorError for certificates or keys that OpenSSL does not read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = tls.checks_host
    try:
        if tls.ca is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(cafile=tls.ca.path, cadata=tls.ca.text)
    except (OSError, ValueError) as error:
        raise OperatorError(f"the trusted certificates cannot be read: {_words(error)}") from error
    if tls.identity is not None:
        with _as_file(tls.identity.certificate) as certificate, _as_file(tls.identity.key) as key:
            try:
                # Without a password OpenSSL would ask at the terminal for that of an encrypted key.
                context.load_cert_chain(certificate, key, tls.key_password or "")
            except (OSError, ValueError) as error:
                raise OperatorError(
                    f"the client's certificate and key cannot be used: {_words(error)}; do they belong "
                    "together, and is ssl.key.password right?"
                ) from error
    return context


@contextmanager
def _as_file(pem: Pem) -> Iterator[str]:
    """OpenSSL loads keys from files only: text goes into one that exists in memory alone."""
    if pem.path is not None:
        yield pem.path
        return
    fd = os.memfd_create("pem")
    try:
        with open(fd, "w", closefd=False) as file:
            file.write(pem.text or "")
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def said(address: str, error: OSError, plain_side: str = _PLAIN_SIDE) -> str:
    """Why the other side ended the connection, for a person. `plain_side`: a guess, if it speaks no
    TLS."""
    name = (error.reason if isinstance(error, ssl.SSLError) else None) or ""
    for end, words in _ALERTS.items():
        if name.endswith(end):
            return f"{address} {words}"
    if isinstance(error, ssl.SSLEOFError | ConnectionResetError | BrokenPipeError) or name in _NOT_TLS:
        return f"{address} closed the connection or sent something else; {plain_side}"
    return _words(error)


def certificate_hint(tls: Tls) -> str:
    """Why a broker may close a connection after the handshake."""
    if tls.identity is None:
        return "; if it requires a client certificate, add ssl.certificate.location, ssl.key.location"
    return "; it may not accept this client's certificate (ssl.certificate.location)"


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return (isinstance(error, OSError) and error.strerror) or str(error)


def not_trusted(address: str, error: ssl.SSLCertVerificationError) -> str:
    """Why this side ended it."""
    certificate, code = f"the certificate of {address}", error.verify_code
    if code == _EXPIRED:
        return f"{certificate} has expired: the broker needs a new one"
    if code == _NOT_YET_VALID:
        return f"{certificate} is not valid yet: are the clocks right?"
    if code in _OTHER_NAMES:
        return (
            f"{certificate} is for another host ({error.verify_message.rstrip('.')}): connect by a name that "
            "it has, or set ssl.endpoint.identification.algorithm= to accept any"
        )
    return (
        f"{certificate} is not trusted ({error.verify_message}): give --command-config with ssl.ca.location, "
        "the certificate of the authority that signed it"
    )
