"""A data directory opened for reading, through the engines' own readers. Nothing in the directory
changes, whether or not a broker runs on it.

Readers are kept per process and directory: opening one may be slow (the segment engine scans
unsealed segments), and LMDB must not be opened twice in one process. Readers of other engines may
be frozen copies that hold disk space (RocksDB's hard links), so these are closed when the last
`reading` block ends. Not thread-safe. All failures are SourceErrors of one line.

This module must not know Spark.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias
from uuid import UUID

from kbroker import plugins
from kbroker.errors import OperatorError, StoreFailed
from kbroker.formats.state import (
    Config,
    ConfigKey,
    LogStart,
    LogStartKey,
    MetaKey,
    ResourceType,
    Topic,
    TopicKey,
    TopicState,
    parse_key,
)
from kbroker.storage.data_dir import DataDescription, DataDirectory
from kbroker.storage.spi import LogId, LogReader, StateReader
from kbroker_spark.errors import SourceError
from kbroker_spark.offsets import Bounds, data_loss

_FOLLOWING: Final = frozenset({"segment", "lmdb"})
"""Engines whose readers show the current content at each call and hold no copy. They stay open."""
_MOST_OPEN: Final = 2
_KEEPS_NOTHING: Final = "memory"
READ_BYTES: Final = 12 << 20
"""Four pieces for the C decoder, one group for numpy. Smaller reads would each end with a small
piece or group."""
_OFFSET = struct.Struct(">q")
_HEAD = struct.Struct(">qi11xi")
"""Of a record batch: base offset, number of bytes after the length field, last offset delta."""
_LEAST_LENGTH = 49


@dataclass(frozen=True)
class TopicInfo:
    """A live topic. `config` has the settings of the topic itself, without defaults."""

    name: str
    topic_id: UUID
    partitions: int
    created_ms: int
    config: Mapping[str, str]

    def log(self, partition: int) -> LogId:
        return LogId(self.topic_id, partition)


class DataDir:
    """An open data directory. Obtain one with `open`, or with `reading` for one task or plan."""

    def __init__(self, path: Path, description: DataDescription, log_path: Path, state_path: Path) -> None:
        self.path = path
        self.description = description
        self.log_path = log_path
        self.state_path = state_path
        self._logs: LogReader | None = None
        self._state: StateReader | None = None
        self._inodes = _inodes(log_path, state_path)
        self.users = 0

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> DataDir:
        """The process's instance for this path. kbroker.json is read at each call, and a directory
        that was replaced is opened again.

        Raises SourceError if the directory does not exist, was not written by kbroker, has a newer
        format, needs an engine that is not installed, or cannot be read.
        """
        with one_line(path):
            with DataDirectory.inspect(Path(_local(path))) as found:
                description, log_path, state_path = found.description, found.log_path, found.state_path
            if _KEEPS_NOTHING in (description.log_engine, description.state_engine):
                raise SourceError(
                    f"{path} belongs to the engine memory, which keeps nothing on disk: use another --storage"
                )
            key = (os.getpid(), os.path.realpath(found.path))
            known = _open_directories.get(key)
            if known is not None and not known._is_still(description):
                known.close()
                known = None
            if known is None:
                known = cls(found.path, description, log_path, state_path)
            _keep(key, known)
            return known

    def _is_still(self, description: DataDescription) -> bool:
        return self.description == description and self._inodes == _inodes(self.log_path, self.state_path)

    def logs(self) -> LogReader:
        """It raises the engine's errors: use it inside `one_line`."""
        if self._logs is None:
            factory = self._engine(plugins.log_store_factory, self.description.log_engine)
            self._logs = _opened(factory, self.log_path)
        assert self._logs is not None
        return self._logs

    def state(self) -> StateReader:
        if self._state is None:
            factory = self._engine(plugins.state_store_factory, self.description.state_engine)
            self._state = _opened(factory, self.state_path)
            self._check_state(self._state)
        assert self._state is not None
        return self._state

    def _check_state(self, state: StateReader) -> None:
        """Raises SourceError for a state store without a broker's start or topics beside logs: the
        directory was copied in part, and would otherwise look empty."""
        is_empty = not any(
            True for namespace in (MetaKey.namespace, TopicKey.namespace) for _ in state.scan(namespace)
        )
        if is_empty and next(iter(self.logs().logs()), None) is not None:
            raise SourceError(
                f"{self.state_path} is empty beside logs of topics: the data directory was copied in part, "
                "restore a backup"
            )

    def _engine(self, factory_of: Callable[[str], Any], name: str) -> Any:  # noqa: ANN401 - a factory of either kind
        try:
            return factory_of(name)
        except OperatorError as error:
            raise SourceError(
                f"{self.path} was written by an engine that is not available here: {error}"
            ) from error

    def refresh(self) -> None:
        """Makes `logs` and `state` show the current content: readers that are frozen copies are
        closed, and opened again at the next use."""
        if self._logs is not None and self.description.log_engine not in _FOLLOWING:
            self._logs.close()
            self._logs = None
        self.refresh_state()

    def refresh_state(self) -> None:
        """The same for the state alone: what it shows then is not older than what `logs` shows."""
        if self._state is not None and self.description.state_engine not in _FOLLOWING:
            self._state.close()
            self._state = None

    def close(self) -> None:
        for reader in (self._logs, self._state):
            if reader is not None:
                reader.close()
        self._logs = self._state = None


_Key: TypeAlias = tuple[int, str]
_open_directories: dict[_Key, DataDir] = {}
"""By process and real path, least recently used first."""


def _keep(key: _Key, directory: DataDir) -> None:
    """Keeps the directory open and closes the least recently used others. LMDB reserves 17 TiB of
    address space for each directory, of the 128 TiB that a process has."""
    _open_directories.pop(key, None)
    idle = [other for other, each in _open_directories.items() if other[0] == key[0] and not each.users]
    for other in idle[: max(0, len(idle) + 1 - _MOST_OPEN)]:
        _open_directories.pop(other).close()
    _open_directories[key] = directory


def _inodes(*directories: Path) -> list[tuple[int, int] | None]:
    """They change when a backup is restored. LMDB would still show the old file, which it keeps
    open."""
    found: list[tuple[int, int] | None] = []
    for path in (each for directory in directories for each in (directory, directory / "data.mdb")):
        try:
            status = path.stat()
        except FileNotFoundError:
            found.append(None)
        else:
            found.append((status.st_dev, status.st_ino))
    return found


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[DataDir]:
    """The directory for one task or plan, in its current state unless another block already uses
    it. Frozen copies are released at the end. Engine errors become SourceErrors."""
    with one_line(path):
        found = DataDir.open(path)
        if not found.users:
            found.refresh()
        found.users += 1
        try:
            yield found
        finally:
            found.users -= 1
            if not found.users:
                found.refresh()


@contextmanager
def one_line(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turns engine errors into SourceErrors. Other exceptions are bugs and pass through."""
    try:
        yield
    except OperatorError as error:
        raise SourceError(str(error)) from error
    except StoreFailed as error:
        raise SourceError(
            f"cannot read {path}: {error}; look at it with kbroker storage inspect --check"
        ) from error
    except PermissionError as error:
        raise SourceError(
            f"cannot read {error.filename or path} (permission denied): give this user read access"
        ) from error
    except OSError as error:
        raise SourceError(f"cannot read {error.filename or path}: {error.strerror or error}") from error
    except Exception as error:
        if type(error) is not Exception:
            raise
        raise SourceError(f"cannot read {path}: {error}") from error  # rocksdict raises plain Exceptions


def _opened(factory: Any, path: Path) -> Any:  # noqa: ANN401 - an engine's reader of either kind
    if not path.exists():
        raise SourceError(
            f"{path} is missing: the data directory was copied in part, or no broker has finished its "
            "first start on it"
        )
    return factory.open_reader(path)


def _local(path: str | os.PathLike[str]) -> str:
    """The path without the file:/ or file:/// that Spark users write for local paths."""
    text = os.fspath(path)
    if "\0" in text:
        raise SourceError(f"{text!r} is not a path: it contains a NUL character")
    if text.startswith("file:"):
        return "/" + text.removeprefix("file:").lstrip("/")
    if "://" in text:
        raise SourceError(
            f"{text} is not a local path: the data directory must be on a disk that every worker has mounted"
        )
    return text


def topics(state: StateReader) -> tuple[TopicInfo, ...]:
    """The live topics at one moment, sorted by name. Raises SourceError if the state cannot be
    read."""
    with state.snapshot() as moment:
        found = [
            (key, value) for key, value in _entries(moment, TopicKey.namespace) if isinstance(value, Topic)
        ]
        configs = {
            key.name: dict(value.entries)
            for key, value in _entries(moment, ConfigKey.namespace)
            if isinstance(value, Config) and key.resource_type is ResourceType.TOPIC
        }
    return tuple(
        sorted(
            (
                TopicInfo(
                    topic.name, key.topic_id, topic.partitions, topic.created_ms, configs.get(topic.name, {})
                )
                for key, topic in found
                if topic.state is TopicState.LIVE
            ),
            key=lambda topic: topic.name,
        )
    )


def _entries(state: StateReader, prefix: bytes) -> Iterator[tuple[Any, Any]]:
    for key, value in state.scan(prefix):
        try:
            parsed = parse_key(key)
            if parsed is not None:
                yield parsed, parsed.decode_value(value)
        except ValueError as error:
            raise SourceError(
                f"the state's key {key.hex()} cannot be read ({error}): look with kbroker storage inspect"
            ) from error


def log_starts(state: StateReader) -> dict[LogId, int]:
    """Log start offsets stored outside the logs (DeleteRecords, retention). A log without an entry
    starts at its first offset."""
    return {
        LogId(key.topic_id, key.partition): value.offset
        for key, value in _entries(state, LogStartKey.namespace)
        if isinstance(value, LogStart)
    }


def bounds(logs: LogReader, state: StateReader, topic: TopicInfo, partition: int) -> Bounds:
    """The bounds that clients see, from the log start offset (DeleteRecords, retention) on. Raises
    KeyError if there is no such log."""
    value = state.get(LogStartKey(topic.topic_id, partition).encode())
    return bounds_from(logs, topic.log(partition), 0 if value is None else LogStart.decode(value).offset)


def bounds_from(logs: LogReader, log: LogId, log_start: int) -> Bounds:
    """The same, with the log's entry of `log_starts`, or 0."""
    found = logs.bounds(log)
    return Bounds(min(max(found.start_offset, log_start), found.end_offset), found.end_offset)


def read_range(
    logs: LogReader,
    topic_id: UUID,
    partition: int,
    first: int,
    end: int,
    max_bytes: int = READ_BYTES,
    *,
    name: str = "",
) -> Iterator[list[memoryview]]:
    """The whole batches that hold the records with first <= offset < end, about `max_bytes` at a
    time. The first and last batch may also hold records outside that range.

    No engine resource is held across a yield. The views stay valid as long as they are referenced.
    `name` (topic-partition) is for error messages. Raises DataLoss where records of the range were
    removed or never written, with the offset at which reading can resume.
    """
    log, offset = LogId(topic_id, partition), first
    name = name or f"{topic_id}-{partition}"
    while offset < end:
        try:
            views = list(logs.read(log, offset, max_bytes=max_bytes, end_offset=end))
            found = _first_offset(views)
            if found is None or found > offset:
                start, log_end = logs.bounds(log)
                _check_hole(name, offset, end, start, log_end, found)
        except KeyError as error:
            raise data_loss(f"{name} is gone, with its offsets {offset} to {end - 1}") from error
        if not views:
            return
        offset = _next_offset(views, name, offset, end, may_begin_before=offset == first)
        yield views


def _check_hole(name: str, offset: int, end: int, start: int, log_end: int, found: int | None) -> None:
    """Raises DataLoss if the log begins after the hole or ends in it. Other holes are legal."""
    if start > offset:
        resume = min(start, end)
        raise data_loss(
            f"offsets {offset} to {resume - 1} of {name} are gone, its log begins at {start}",
            resume if resume < end else None,
        )
    if found is None and log_end < end:
        raise data_loss(
            f"offsets {max(log_end, offset)} to {end - 1} of {name} are not there, its log ends at {log_end}"
        )


def _first_offset(views: Sequence[memoryview]) -> int | None:
    if not views:
        return None
    (offset,) = _OFFSET.unpack_from(views[0])
    return int(offset)


def _next_offset(
    views: Sequence[memoryview], name: str, offset: int, end: int, *, may_begin_before: bool
) -> int:
    """The offset after the last batch. No CRC protects a batch's base offset, and a wrong one would
    silently move its records out of the range. Only the first read of a range may begin inside a
    batch; later reads begin at one."""
    following, last = offset, -1 if may_begin_before else offset - 1
    for view in views:
        position, size = 0, len(view)
        while position + _HEAD.size <= size:
            base_offset, length, delta = _HEAD.unpack_from(view, position)
            if base_offset <= last or not 0 <= base_offset < end or length < _LEAST_LENGTH:
                raise _damaged(name, base_offset, following)
            last = base_offset + delta
            position += length + 12
        if position != size or last < following:
            raise _damaged(name, last, following)
        following = last + 1
    return following


def _damaged(name: str, found: int, offset: int) -> SourceError:
    return SourceError(
        f"{name} is damaged: after offset {offset} there is a record batch with a wrong length or offset "
        f"(it says {found}); "
        "look with kbroker storage inspect --check"
    )
