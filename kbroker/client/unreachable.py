"""Why there is no connection to a broker. Each error is one line for a person, and ends a command
with the same exit code."""

from __future__ import annotations

from kbroker.errors import OperatorError


class BrokerUnreachable(OperatorError):
    """No connection, no response in time, or a closed connection: one line for a person."""


class ConnectionClosed(BrokerUnreachable):
    """The broker closed the connection instead of answering."""


class NotAuthenticated(BrokerUnreachable):
    """The broker refused the login, or does not offer the mechanism. Trying again does not help."""
