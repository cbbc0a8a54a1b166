"""Administration of work queues: what `kbroker queues` does, for asyncio and trio.

    async with QueueAdmin("127.0.0.1:9092") as admin:
        await admin.create("emails", deliveries=5, delay=timedelta(seconds=10))

The plans, defaults and checks are those of the command: the same code. It is blocking, so each call
runs it in a thread. Its requests are sent on the event loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from difflib import get_close_matches
from functools import partial
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeAlias, TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread

from ._shared.client.admin import bounds
from ._shared.client.caller import Caller
from ._shared.client.queues import advice, creation, values
from ._shared.client.queues.counts import (
    Counts,
    QueueSummary,
    QueueWorker,
    count,
    summaries,
    unfinished_jobs,
)
from ._shared.client.queues.deletion import check_workers, delete_queue, purge_queue
from ._shared.client.queues.found import existing, missing
from ._shared.client.queues.plan import Difference
from ._shared.client.queues.settings import SETTINGS, Kind, Queue, Setting, Wish, look
from ._shared.client.spans import FOREVER
from ._shared.settings.definition import INT_MAX
from .cluster import Cluster
from .connection import Connection
from .errors import (
    BrokerUnreachable,
    ClientClosed,
    IllegalState,
    QueueDifference,
    QueueDiffers,
    QueueMissing,
    QueueRefused,
)
from .security import PLAINTEXT, Security

R = TypeVar("R")
Value: TypeAlias = str | int | float | bool | timedelta
_ARGUMENTS: Final[Mapping[str, Setting]] = {each.name.replace("-", "_"): each for each in SETTINGS.values()}


class QueueCreated(NamedTuple):
    """What `create` did.

    - `is_new`, `is_altered`: neither if the queue was there as requested
    - `steps`: what was done, in lines for a person
    - `unlike_new`: settings that the call did not name, and that a new queue would have otherwise;
      they stay as they are
    """

    name: str
    is_new: bool
    is_altered: bool
    steps: tuple[str, ...]
    unlike_new: tuple[QueueDifference, ...]


class QueueDescription(NamedTuple):
    """- `sent`: jobs that were ever sent; `unfinished`: those that are neither done nor given up
    - `dead_letter_topic`: None if the queue has none; `dead_letters`: the records in it, None if it
      does not exist
    - `settings`: the values in force, by the names of `create`; None if the broker has no such
      setting
    """

    name: str
    partitions: int
    is_paused: bool
    sent: int
    unfinished: int
    workers: tuple[QueueWorker, ...]
    dead_letter_topic: str | None
    dead_letters: int | None
    settings: Mapping[str, Value | None]


class QueueDeleted(NamedTuple):
    """`workers`: how many were removed from the group. `dead_letter_topic`: the one that stays."""

    workers: int
    dead_letter_topic: str | None


class _Blocking:
    """A connection for code that runs in a thread of `anyio.to_thread`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def call(self, api: str, version: int | None = None, /, **fields: Any) -> Any:
        return anyio.from_thread.run(partial(self._connection.call, api, version, **fields))


class QueueAdmin:
    """Use it with `async with`; several tasks may.

    A call that is cancelled closes its connection, and sends nothing more. What it has done stays:
    the same call does the rest. So it is after BrokerUnreachable.

    Entering raises BrokerUnreachable if no broker can be reached. Every call may raise it, and
    KafkaError. The text of a QueueRefused says what to do.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        client_id: str = "kbroker-client",
        security: Security = PLAINTEXT,
    ) -> None:
        self._cluster = Cluster(bootstrap, client_id, security)
        self._unused: Connection | None = None
        self._is_open = False
        self._is_closed = False

    async def __aenter__(self) -> Self:
        if self._is_open or self._is_closed:
            raise IllegalState("a queue admin can be entered once")
        self._unused = await self._cluster.connect_to_any()
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open, self._is_closed = False, True
        if self._unused is not None:
            await self._unused.close()

    async def create(
        self,
        name: str,
        *,
        partitions: int | None = None,
        dead_letters: str | bool | None = None,
        update: bool = False,
        force: bool = False,
        **settings: Value,
    ) -> QueueCreated:
        """Create a queue: a topic, the share group of its name, and a dead letter topic. If it is
        there as requested, nothing is changed.

        - `dead_letters`: their topic; None: dlq.NAME, False: none
        - `update`: alter an existing queue where it differs from the request
        - `force`: add partitions even if the queue keeps the order of keys
        - `settings`: as the options of `kbroker queues create`, with underscores: `max_delay`. A
          duration is a timedelta, a number of seconds, or a text such as "10m". Settings that are
          not named keep their values; a new queue gets the command's defaults.

        Raises QueueDiffers if the queue exists and differs, without `update`; QueueRefused,
        ValueError, and TypeError for a setting that does not exist.
        """
        wish = Wish(name, _checked_count(partitions), _checked_topic(dead_letters), _texts(settings))
        done: list[str] = []
        made = await self._run(
            partial(creation.create_queue, wish=wish, update=update, force=force, done=done.append)
        )
        left = tuple(map(_difference, made.left))
        return QueueCreated(name, made.is_new, bool(made.steps) and not made.is_new, tuple(done), left)

    async def list(self) -> list[QueueSummary]:
        """All queues: topics that have a share group of the same name."""
        return await self._run(lambda caller: list(summaries(caller)))

    async def describe(self, name: str) -> QueueDescription:
        """Raises QueueMissing."""
        queue, counts = await self._run(partial(_looked_at, name=name))
        return _description(queue, counts)

    async def purge(self, name: str, *, force: bool = False) -> int:
        """Drop all jobs that are not finished; returns how many. Dead letters stay.

        - `force`: even if the queue has workers; jobs that they hold are dropped too

        Raises QueueMissing, and QueueRefused if the queue has workers.
        """
        return await self._run(partial(_purge, name=name, force=force))

    async def delete(
        self, name: str, *, force: bool = False, with_dead_letters: bool = False
    ) -> QueueDeleted:
        """Delete a queue with all its jobs, also the unfinished ones. There is no question.

        - `force`: even if the queue has workers, which are removed from the group
        - `with_dead_letters`: also delete the dead letter topic with all its records

        Raises QueueMissing, and QueueRefused if the queue has workers, or if its dead letter topic
        is that of another queue too.
        """
        return await self._run(partial(_delete, name=name, force=force, with_dead_letters=with_dead_letters))

    async def _run(self, work: Callable[[Caller], R]) -> R:
        """Run blocking code in a thread. If the call is cancelled, the thread is abandoned: its
        connection is closed, so its next request fails, and it ends."""
        connection = await self._connection()
        try:
            found = await anyio.to_thread.run_sync(
                work,
                _Blocking(connection),
                abandon_on_cancel=True,
                limiter=anyio.CapacityLimiter(1),  # Of its own: jobs may use all threads of the default one.
            )
        except advice.QueueRefused as refused:
            await connection.close()
            raise _in_python(refused) from None
        except BaseException:
            await connection.close()
            raise
        if self._is_open and self._unused is None:
            self._unused = connection
        else:
            await connection.close()
        return found

    async def _connection(self) -> Connection:
        """One that no other call uses. The last call's may have been lost since."""
        if self._is_closed:
            raise ClientClosed("the queue admin has been closed")
        if not self._is_open:
            raise IllegalState("use a queue admin with `async with`")
        unused, self._unused = self._unused, None
        if unused is not None:
            with suppress(BrokerUnreachable):
                await unused.call("metadata", topics=(), allow_auto_topic_creation=False,
                    include_topic_authorized_operations=False)  # fmt: skip
                return unused
        return await self._cluster.connect_to_any()


def _looked_at(connection: Caller, *, name: str) -> tuple[Queue, Counts]:
    queue = existing(connection, name)
    assert queue.topic is not None
    return queue, count(connection, queue, bounds(connection, queue.topic))


def _description(queue: Queue, counts: Counts) -> QueueDescription:
    assert queue.topic is not None
    texts = {name: queue.value(each.part, each.config) for name, each in _ARGUMENTS.items()}
    settings = {
        name: None if text is None else values.value_of(_ARGUMENTS[name], text)
        for name, text in texts.items()
    }
    return QueueDescription(
        queue.name,
        len(queue.topic.partitions),
        queue.is_paused,
        counts.sent,
        counts.unfinished,
        counts.workers,
        queue.dead_letters or None,
        counts.dead_letters,
        settings,
    )


def _purge(connection: Caller, *, name: str, force: bool) -> int:
    queue = existing(connection, name)
    check_workers(connection, queue, force=force)
    jobs = unfinished_jobs(connection, queue)
    if jobs:
        purge_queue(connection, queue, force=force)
    return jobs


def _delete(connection: Caller, *, name: str, force: bool, with_dead_letters: bool) -> QueueDeleted:
    queue = look(connection, name)
    if not queue.is_whole and not queue.is_configured:
        raise missing(queue)
    deleted = delete_queue(connection, queue, force=force, with_dead_letters=with_dead_letters)
    stays = queue.dead_letter_topic is not None and not with_dead_letters
    return QueueDeleted(deleted.workers, queue.dead_letters if stays else None)


def _checked_count(partitions: int | None) -> int | None:
    if partitions is not None and not 1 <= partitions <= INT_MAX:
        raise ValueError(f"partitions must be a whole number from 1 to {INT_MAX}, not {partitions!r}")
    return partitions


def _checked_topic(dead_letters: str | bool | None) -> str | None:
    """As in a Wish: None is the default, "" is none."""
    if dead_letters is None or dead_letters is True:
        return None
    if dead_letters == "":
        raise ValueError("dead_letters must be the name of a topic, or False for none")
    return dead_letters or ""


def _texts(settings: Mapping[str, Value]) -> dict[str, str]:
    """Texts of config values, by names of SETTINGS. Raises TypeError and ValueError."""
    found = {}
    for argument, value in settings.items():
        setting = _ARGUMENTS.get(argument)
        if setting is None:
            close = get_close_matches(argument, _ARGUMENTS, n=1)
            meant = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(_ARGUMENTS)}"
            raise TypeError(f"a queue has no setting {argument!r}: {meant}")
        try:
            found[setting.name] = values.text_of(setting, _as_duration(setting, value))
        except ValueError as error:
            raise ValueError(f"{argument}: {error}") from None
    return found


def _as_duration(setting: Setting, value: Value) -> Value:
    """A number of seconds as a timedelta, where the setting is a duration."""
    if setting.kind is not Kind.DURATION or isinstance(value, str | bool):
        return value
    if value == math.inf:
        return FOREVER
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not 0 <= seconds < timedelta.max.total_seconds():
        raise ValueError(f"{value!r} is not a duration: give 0 seconds or more")
    return timedelta(seconds=seconds)


def _in_python(refused: advice.QueueRefused) -> QueueRefused:
    text = refused.in_python()
    if isinstance(refused, creation.QueueDiffers):
        differences = tuple(map(_difference, refused.plan.differences))
        return QueueDiffers(f"{text} ({'; '.join(map(str, differences))})", differences)
    return QueueMissing(text) if isinstance(refused, advice.QueueMissing) else QueueRefused(text)


def _difference(difference: Difference) -> QueueDifference:
    found = values.written(difference)
    is_own = found.setting in SETTINGS or found.setting == "dead-letters"
    argument = found.setting.replace("-", "_") if found.setting and is_own else found.setting
    return QueueDifference(argument, found.present, found.wanted)
