"""What a failure means: the job is delivered again, or it is rejected and becomes a dead letter.

    raised                                    attempt <= retries      attempt > retries
    Retry                                     delivered again         rejected
    an exception that no rule names           delivered again         rejected
    Reject, or an exception of reject_on      rejected                rejected
    a payload that cannot be read             rejected                rejected
    none: it ran too long, its process died   delivered again         rejected

The queue's redelivery settings decide when a job is delivered again.
"""

from __future__ import annotations

import os
import re
import traceback
from enum import Enum
from types import TracebackType
from typing import Final, NamedTuple

from .._shared.share.reasons import MAX_REASON_BYTES, Reason

_MAX_TYPE_BYTES: Final = 256
_MAX_MESSAGE_BYTES: Final = 1024
_LINE: Final = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)
_CHAINED: Final = re.compile(
    r"^(?:The above exception was the direct cause of|During handling of the above exception, another) ",
    re.MULTILINE,
)
"""Before an exception, behind those that led to it."""
TIMED_OUT: Final = "JobTimedOut"
_PACKAGE: Final = os.path.dirname(os.path.dirname(__file__))
_CUT: Final = b"\n...\n"
_OWN_MODULES: Final = ("kbroker_client.worker.", "anyio.", "contextlib", "threading", "concurrent.")


class Retry(Exception):
    """Raised by a job: deliver it again. When, is decided by the queue's redelivery settings."""


class Reject(Exception):
    """Raised by a job: no further delivery can help. `type` of the reason: the name of the
    exception that this one was raised from, unless it is given."""

    type: str | None = None

    def __init__(self, message: str = "", *, type: str | None = None) -> None:
        super().__init__(message)
        self.type = type


class Unreadable(Exception):
    """A payload cannot be read. Raised by serializers; the job is rejected."""


class Kind(Enum):
    RETRY = "retry"
    REJECT = "reject"
    ERROR = "error"
    """Delivered again, as long as there are retries."""
    STOPPED = "stopped"
    """Delivered again in any case: the worker ends."""


class Failure(NamedTuple):
    """Why a job did not succeed. `error`: None if it is in another process, or none was raised."""

    kind: Kind
    reason: Reason
    error: BaseException | None = None

    def is_final(self, attempt: int, retries: int | None) -> bool:
        """Whether the job is rejected. `retries`: None if the queue alone counts."""
        if self.kind is Kind.STOPPED:
            return False
        return self.kind is Kind.REJECT or (retries is not None and attempt > retries)


def failure_of(error: BaseException, reject_on: tuple[type[BaseException], ...] = ()) -> Failure:
    """A group of one exception counts as that exception: task groups wrap what tasks raise."""
    cause = error
    while isinstance(cause, BaseExceptionGroup) and len(cause.exceptions) == 1:
        cause = cause.exceptions[0]
    if isinstance(cause, Reject):
        origin = cause.__cause__
        named = _given_type(cause) or (_name(origin) if origin is not None else _name(cause))
        message = _text(cause) or (_text(origin) if origin is not None else "")
        return Failure(Kind.REJECT, reason(named, message, _trace(error)), error)
    kind = Kind.ERROR
    if isinstance(cause, Retry):
        kind = Kind.RETRY
    elif isinstance(cause, (Unreadable, *reject_on)):
        kind = Kind.REJECT
    return Failure(kind, reason(_name(cause), _text(cause), _trace(error)), error)


def reason(type_name: str, message: str, trace: str = "") -> Reason:
    """At most MAX_REASON_BYTES: the middle of a long traceback is cut out."""
    type_name = _start(type_name, _MAX_TYPE_BYTES)
    message = _start(message, _MAX_MESSAGE_BYTES)
    room = MAX_REASON_BYTES - len(type_name.encode()) - len(message.encode())
    encoded = trace.encode("utf-8", "replace")
    if len(encoded) > room:
        half = (room - len(_CUT)) // 2
        encoded = encoded[:half] + _CUT + encoded[-half:]
    return Reason(type_name, message, encoded.decode("utf-8", "ignore"))


def _start(text: str, most: int) -> str:
    """Its first bytes as UTF-8; what UTF-8 cannot express becomes a question mark."""
    return str.encode(text, "utf-8", "replace")[:most].decode("utf-8", "ignore")


def _given_type(error: Reject) -> str | None:
    """A class derived from Reject may mean something else by `type`."""
    given: object = error.type
    return given if isinstance(given, str) else None


def _name(error: BaseException) -> str:
    """With its module, unless Python or this package has it, or none is known."""
    kind = type(error)
    module: object = kind.__module__
    is_short = not isinstance(module, str) or module == "builtins" or module.startswith("kbroker_client.")
    return kind.__qualname__ if is_short else f"{module}.{kind.__qualname__}"


def _text(error: BaseException) -> str:
    """Whatever the class does: no exception of a job may end its worker."""
    try:
        return f"the job called exit({error.code!r})" if isinstance(error, SystemExit) else str(error)
    except (Exception, SystemExit) as raised:
        return f"(its text cannot be had: {type(raised).__name__})"


def _trace(error: BaseException) -> str:
    """From the job's own first line on. The lines of code alone, if the rest cannot be had."""
    found = _without_own(error.__traceback__)
    try:
        return "".join(traceback.format_exception(type(error), error, found))
    except Exception:
        return "".join(traceback.format_tb(found))


def _without_own(found: TracebackType | None) -> TracebackType | None:
    while found is not None and found.tb_next is not None and _is_own(found):
        found = found.tb_next
    return found


def _is_own(found: TracebackType) -> bool:
    name = str(found.tb_frame.f_globals.get("__name__", "")) + "."
    return name.startswith(_OWN_MODULES)


def place_of(failure: Failure) -> str:
    """The line of the job's program, such as " (emails.py:8)"; empty if no exception that it did
    not expect was raised there. Exceptions that led to the last one may be a library's."""
    *_, trace = _CHAINED.split(failure.reason.traceback)
    found = _LINE.search(trace) if failure.kind is Kind.ERROR else None
    if found is None or failure.reason.type == TIMED_OUT or found[1].startswith(_PACKAGE):
        return ""
    return f" ({os.path.basename(found[1])}:{found[2]})"


def too_often(attempt: int, retries: int) -> Failure:
    """Of a job that was delivered after its last attempt: workers died at it, or gave it back."""
    text = f"delivered {attempt} times, and retries={retries} allows {retries + 1}; this time it was not run"
    return Failure(Kind.REJECT, reason("RetriesExhausted", text))
