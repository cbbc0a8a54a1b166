"""The errors of this client. A text says what happened, where, and what to do about it.

`KafkaError` is the broker's answer: it has the protocol's error code. All others have no code.
"""

from __future__ import annotations

from ._shared.client.queues.advice import QueueDifference
from ._shared.errors import ErrorCode, KafkaError

__all__ = [
    "BrokerUnreachable", "ClientClosed", "ClientError", "ErrorCode", "IllegalState", "KafkaError",
    "LockLost", "NotAuthenticated", "QueueDifference", "QueueDiffers", "QueueMissing", "QueueRefused",
    "TimedOut", "WokenUp",
]  # fmt: skip


class ClientError(Exception):
    """Any error of this client but KafkaError and IllegalState."""


class BrokerUnreachable(ClientError):
    """No connection could be made, or it was lost. A request that was sent may have been carried
    out."""


class NotAuthenticated(BrokerUnreachable):
    """The broker refused the log-in, or its certificate is not trusted. Trying again does not
    help."""


class TimedOut(ClientError, TimeoutError):
    """The time of a call is over. What it began may still be carried out."""


class LockLost(ClientError):
    """A record's acknowledgement came too late: its lock has run out or its connection was lost.
    The record is, or will be, delivered again, unless only the answer was lost: then the broker may
    have carried the acknowledgement out."""


class QueueRefused(ClientError):
    """A queue cannot be created, altered, purged or deleted. The text says why, and what to do."""


class QueueDiffers(QueueRefused):
    """A queue that was to be created exists and differs, or its name belongs to a topic or a group
    that is none. Nothing was changed."""

    def __init__(self, text: str, differences: tuple[QueueDifference, ...]) -> None:
        super().__init__(text)
        self.differences = differences


class QueueMissing(QueueRefused):
    """The queue does not exist, or only a part of it."""


class WokenUp(ClientError):
    """poll() ended because of wake_up()."""


class ClientClosed(ClientError):
    """The client has been closed."""


class IllegalState(RuntimeError):
    """A call that is not allowed now; a mistake in the calling program."""
