"""The token of the admin HTTP endpoint for a broker without users: DATA_DIR/admin-token, mode 0600.

A person who can read this file can read all records, too, and can create users while the broker is
stopped. So the token is worth what the data directory is worth, and needs no rights of its own.

The file is replaced as a whole, so a reader sees the former token or the new one.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from kbroker.errors import OperatorError

ADMIN_TOKEN: Final = "admin-token"
_TEMPORARY: Final = f"{ADMIN_TOKEN}.tmp"
_TOKEN_BYTES: Final = 32
_MAX_BYTES: Final = 1024
_FLAGS: Final = os.O_NOFOLLOW | os.O_CLOEXEC


class Stamp(NamedTuple):
    """It differs whenever the file was replaced."""

    inode: int
    modified_ns: int
    mode: int


def stamp(data_dir: Path) -> Stamp | None:
    """None: there is no token."""
    try:
        found = os.lstat(data_dir / ADMIN_TOKEN)
    except OSError:
        return None
    return Stamp(found.st_ino, found.st_mtime_ns, found.st_mode)


def read(data_dir: Path) -> str:
    """The token. Raises FileNotFoundError, and OperatorError for a file that cannot be trusted."""
    path = data_dir / ADMIN_TOKEN
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | _FLAGS)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise OperatorError(f"cannot read {path}: {error.strerror}") from error
    with open(fd, "rb") as file:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode) or mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise OperatorError(
                f"{path} must be a file that only its owner can read: `kbroker admin token` makes a new one"
            )
        token = file.read(_MAX_BYTES).decode("ascii", "replace").strip()
    if len(token) < _TOKEN_BYTES:
        raise OperatorError(f"{path} has no token: `kbroker admin token` makes a new one")
    return token


def renew(data_dir: Path) -> str:
    """Replace the token, and return the new one. Durable on return. It belongs to the owner of the
    directory, also if root makes it. Raises OSError."""
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    temporary = data_dir / _TEMPORARY
    with suppress(FileNotFoundError):
        temporary.unlink()
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600)
    with open(fd, "wb") as file:
        file.write(token.encode() + b"\n")
        file.flush()
        if os.geteuid() == 0:
            owner = data_dir.stat()
            os.fchown(fd, owner.st_uid, owner.st_gid)
        os.fsync(fd)
    temporary.rename(data_dir / ADMIN_TOKEN)
    directory = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return token


def ensure(data_dir: Path) -> str:
    """The token, which is made if there is none. Raises OperatorError and OSError."""
    try:
        return read(data_dir)
    except FileNotFoundError:
        return renew(data_dir)
