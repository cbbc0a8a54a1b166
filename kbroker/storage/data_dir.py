"""The data directory: its lock, its description (`kbroker.json`), and the folders of the engines.
docs/format.md draws it.

`kbroker.json` is created by a rename when the directory is first used. Afterwards only its format
version changes: it rises when the directory gets something that earlier versions would misread.
Every refusal is an OperatorError: one line that says what to do. This module knows engines only by
name.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import json
import logging
import os
import shlex
import stat
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from kbroker.errors import NoFiles, NoSpace, OperatorError, StoreFailed
from kbroker.storage.files import NO_FILES, NO_SPACE, Files, make_directory

FIRST_FORMAT = 1
TRANSACTIONS_FORMAT = 2
"""Logs may have the markers of transactions, which earlier versions take for batches of the
producer."""
COMPACTION_FORMAT = 3
"""Segments may begin or end with a hole, or be empty. Earlier versions return the batches behind an
empty segment twice."""
SECURITY_FORMAT = 4
"""The state may have ACLs and credentials. Earlier versions ignore them, and would let every client
do everything."""
NODE_ID_FORMAT = 5
"""The broker has another id than 1. Earlier versions answer as broker 1."""
FORMAT_VERSION = NODE_ID_FORMAT
"""The newest that this version reads and writes."""
logger = logging.getLogger(__name__)

FIRST_NODE_ID = 1
"""The id of a broker that was given none, and of every broker before there was a choice."""
OWNER_ONLY = 0o700
_OTHERS = 0o077
DESCRIPTION = "kbroker.json"
LOCK = ".lock"
_TEMPORARY = DESCRIPTION + ".tmp"
_HARMLESS = frozenset({LOCK, _TEMPORARY, "lost+found"})
"""Names that an unused directory may contain: left by a start that failed early, or by mkfs."""


@dataclass(frozen=True, slots=True)
class DataDescription:
    """Content of kbroker.json. `cluster_id` has 22 characters, as in Kafka; the engines are entry
    point names. `node_id` is missing where an earlier version wrote the file."""

    format_version: int
    cluster_id: str
    log_engine: str
    state_engine: str
    node_id: int = FIRST_NODE_ID


def random_cluster_id() -> str:
    """A random UUID in URL-safe base64. It never begins with a dash, so it can be passed on a
    command line."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text


class DataDirectory:
    """An open data directory, locked unless it is only inspected; a context manager that releases
    the lock."""

    def __init__(
        self, path: Path, description: DataDescription, lock_fd: int | None, files: Files | None = None
    ) -> None:
        self.path = path
        self.description = description
        self._lock_fd = lock_fd
        self._files = files or Files()

    @property
    def cluster_id(self) -> str:
        return self.description.cluster_id

    @property
    def log_path(self) -> Path:
        """The engine creates this directory when it opens."""
        return self.path / f"log-{self.description.log_engine}"

    @property
    def state_path(self) -> Path:
        return self.path / f"state-{self.description.state_engine}"

    @classmethod
    def open(
        cls,
        path: Path,
        log_engine: str,
        state_engine: str,
        *,
        new_cluster_id: Callable[[], str] = random_cluster_id,
        files: Files | None = None,
        mode: int = OWNER_ONLY,
        node_id: int | None = None,
    ) -> DataDirectory:
        """Lock the directory for this process. On first use also write its description, durable on
        return, and give it the permissions `mode`. They decide for all that the engines create in
        it, because other users must pass this directory. Logs a warning if others have more.
        `node_id`: the broker's; None: that of the description, or of a new directory 1.

        Raises OperatorError if the directory is in use, was written by another engine, another
        broker or a newer version, is damaged, belongs to another program, or is not accessible.
        """
        files = files or Files()
        try:
            make_directory(path, files)
            lock_fd = _lock(path, files)
        except OSError as error:
            raise _no_access(path, error) from error
        try:
            description = _read(path, files)
            if description is None:
                files.chmod(path, mode)
                description = _new(new_cluster_id(), log_engine, state_engine, node_id)
                _create(path, description, files)
            _check_engines(path, description, log_engine, state_engine)
            _check_node(path, description, node_id)
        except OSError as error:
            files.close(lock_fd)
            raise _no_access(path, error) from error
        except OperatorError:
            files.close(lock_fd)
            raise
        _warn_of_mode(path, mode)
        return cls(path, description, lock_fd, files)

    def raise_format(self, version: int) -> None:
        """Have earlier versions of kbroker refuse this directory; durable on return. Raises
        NoSpace, StoreFailed."""
        if self.description.format_version >= version:
            return
        description = replace(self.description, format_version=version)
        try:
            _create(self.path, description, self._files)
            self._files.fsync_dir(self.path)
        except OSError as error:
            if error.errno in NO_FILES:
                raise NoFiles(f"{error}; {NoFiles.remedy}") from error
            if error.errno in NO_SPACE:
                raise NoSpace(str(error)) from error
            raise StoreFailed(f"{self.path / DESCRIPTION} cannot be written: {error}") from error
        self.description = description

    @classmethod
    def inspect(cls, path: Path, *, files: Files | None = None) -> DataDirectory:
        """Open for reading: takes no lock and changes nothing. Raises OperatorError if there is no
        usable data directory."""
        try:
            description = _read(path, files or Files())
        except FileNotFoundError as error:
            raise OperatorError(f"there is no directory {path}: give the --data-dir of a broker") from error
        except PermissionError as error:
            raise OperatorError(
                f"cannot read {error.filename or path} (permission denied): give this user read access"
            ) from error
        except OSError as error:
            raise _no_access(path, error) from error
        if description is None:
            raise OperatorError(f"{path} has no {DESCRIPTION}: no broker has used it yet")
        return cls(path, description, None)

    def close(self) -> None:
        """Release the lock."""
        if self._lock_fd is not None:
            lock_fd, self._lock_fd = self._lock_fd, None
            os.close(lock_fd)

    def __enter__(self) -> DataDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _warn_of_mode(path: Path, mode: int) -> None:
    present = stat.S_IMODE(path.stat().st_mode)
    if present & ~mode & _OTHERS:
        logger.warning(
            "other users of this host can read %s (mode %03o): `chmod %03o %s` closes it",
            path, present, mode, shlex.quote(str(path)),
        )  # fmt: skip


def _lock(path: Path, files: Files) -> int:
    lock_fd = files.open(path / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        files.ftruncate(lock_fd, 0)
        files.write_all(lock_fd, [b"%d\n" % os.getpid()], 0)
    except BlockingIOError as error:
        holder = os.pread(lock_fd, 32, 0).decode(errors="replace").strip()
        files.close(lock_fd)
        who = f"another broker (process {holder})" if holder.isdigit() else "another broker"
        raise OperatorError(f"{path} is in use by {who}: stop it, or choose another --data-dir") from error
    except OSError:
        files.close(lock_fd)
        raise
    return lock_fd


def _read(path: Path, files: Files) -> DataDescription | None:
    """None if the directory exists but is unused."""
    try:
        content = files.read(path / DESCRIPTION)
    except FileNotFoundError:
        foreign = sorted(set(files.listdir(path)) - _HARMLESS)
        if not foreign:
            return None
        raise OperatorError(
            f"{path} is not a kbroker data directory: it has no {DESCRIPTION} but other files "
            f"({foreign[0]}); choose another directory"
        ) from None
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, "it is not JSON") from error
    return _parse(path, values)


def _parse(path: Path, values: Any) -> DataDescription:  # noqa: ANN401 - whatever JSON holds
    if not isinstance(values, dict) or type(values.get("format_version")) is not int:
        raise _damaged(path, "it has no format_version")
    if values["format_version"] > FORMAT_VERSION:
        raise OperatorError(
            f"{path} was written by a newer kbroker (format {values['format_version']}, this one knows "
            f"{FORMAT_VERSION}): "
            "use that version, or choose another --data-dir"
        )
    for name in ("cluster_id", "log_engine", "state_engine"):
        if not isinstance(values.get(name), str) or not values[name]:
            raise _damaged(path, f"it has no {name}")
    node_id = values.get("node_id", FIRST_NODE_ID)
    if type(node_id) is not int or node_id < 0:
        raise _damaged(path, "its node_id is no number")
    return DataDescription(
        values["format_version"], values["cluster_id"], values["log_engine"], values["state_engine"], node_id
    )


def _new(cluster_id: str, log_engine: str, state_engine: str, node_id: int | None) -> DataDescription:
    node_id = FIRST_NODE_ID if node_id is None else node_id
    version = FIRST_FORMAT if node_id == FIRST_NODE_ID else NODE_ID_FORMAT
    return DataDescription(version, cluster_id, log_engine, state_engine, node_id)


def _create(path: Path, description: DataDescription, files: Files) -> None:
    files.write_atomically(path / DESCRIPTION, [json.dumps(asdict(description), indent=4).encode() + b"\n"])
    files.fsync_dir(path)


def _check_engines(path: Path, found: DataDescription, log_engine: str, state_engine: str) -> None:
    for option, written, wanted in (
        ("--storage", found.log_engine, log_engine),
        ("--state-storage", found.state_engine, state_engine),
    ):
        if written != wanted:
            raise OperatorError(
                f"{path} was written with {option} {written}, not {wanted}: start with {option} {written}, "
                "or choose another --data-dir"
            )


def _check_node(path: Path, found: DataDescription, node_id: int | None) -> None:
    """Clients and stored settings know the broker by its id."""
    if node_id not in (None, found.node_id):
        raise OperatorError(
            f"{path} belongs to the broker with node.id={found.node_id}, not {node_id}: "
            f"start with node.id={found.node_id}, or choose another --data-dir"
        )


def _damaged(path: Path, reason: str) -> OperatorError:
    return OperatorError(
        f"{path / DESCRIPTION} is damaged ({reason}): restore it from a backup, or choose another --data-dir"
    )


def _no_access(path: Path, error: OSError) -> OperatorError:
    """One line for an error of the operating system."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        advice = "give this user write access, or choose another --data-dir"
    elif error.errno in (errno.EEXIST, errno.ENOTDIR):
        advice = "it is a file; choose another --data-dir"
    elif error.errno in NO_SPACE:
        advice = "make room, or choose another --data-dir"
    elif error.errno in NO_FILES:
        advice = NoFiles.remedy
    else:
        advice = "choose another --data-dir"
    return OperatorError(f"cannot use {path} ({os.strerror(error.errno or 0)}): {advice}")
