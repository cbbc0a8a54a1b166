"""The three kinds of error, and nothing else.

`KafkaError` is the client's business: it carries a protocol error code and is turned into a
response row at one border (the API handlers). `StoreFailed` and `NoSpace` are the storage engines'
words about what is on disk. `OperatorError` is for a person: one line that says what is wrong and
what to do, printed by the command line without a traceback. Anything else that is raised is a bug
and is allowed to crash the task that met it.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

__all__ = ["ErrorCode", "KafkaError", "NoSpace", "OperatorError", "StoreFailed"]


class KafkaError(Exception):
    """A request, or a part of one, is refused with a Kafka protocol error code.

    `code` is the wire code; `message` the text for the fields that carry one (None where Kafka
    sends null).
    """

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(code.name if message is None else f"{code.name}: {message}")
        self.code = code
        self.message = message


class StoreFailed(Exception):
    """A store could not do what it was asked and nobody knows what is on disk: it takes no more
    writes until restart."""


class NoSpace(Exception):
    """The disk is full: nothing of the refused call was kept; reading goes on, and writing works
    again with space."""


class OperatorError(Exception):
    """Start-up or an operator's command cannot go on; the text is one line that says what to do
    about it."""
