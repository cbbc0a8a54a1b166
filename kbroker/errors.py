"""The three kinds of error, and nothing else.

`KafkaError` is for the client: it has a protocol error code, and the API handlers turn it into a
response row. `StoreFailed` and `NoSpace` are for the broker: storage engines raise them to say what
is on disk. `OperatorError` is for a person: one line with the problem and what to do about it,
printed by the command line without a traceback. Any other exception is a bug, and may crash the
task in which it is raised.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

__all__ = ["ErrorCode", "KafkaError", "NoFiles", "NoSpace", "OperatorError", "StoreFailed"]


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
    """A store failed, and what is on disk is unknown: it accepts no more writes until a restart."""


class NoSpace(Exception):
    """The disk is full. Nothing of the refused call was kept; reads continue, and writes succeed
    again once there is space.

    `shortage` and `remedy` are for lines that a person reads."""

    shortage = "no space on the disk"
    remedy = "make room"


class NoFiles(NoSpace):
    """The same for lack of open files instead of disk space: every caller handles both alike."""

    shortage = "no more open files"
    remedy = "raise the limit of open files (ulimit -n)"


class OperatorError(Exception):
    """A start or an operator's command cannot continue. The text is one line that says what to do
    about it."""
