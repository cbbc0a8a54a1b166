"""A reader's own copy of a RocksDB database while a broker writes to it. It consists of hard links;
only the manifest is copied.

RocksDB's read-only and secondary modes sometimes show a hole in the middle of a log, if opened
during heavy writing. Linking the files in the right order avoids that: first the WAL, then CURRENT
and the manifest that it names, then the table files. Every record is then either in a linked WAL or
in a table of the later manifest. If a table disappears meanwhile, the copy is started over.

The copy lies in the `readers` folder beside the database, because hard links do not cross file
systems. `close` removes it. Copies of killed readers are removed when a store opens, and when the
next reader makes its copy. A reader holds a lock (flock) on its copy, which ends with its process;
a process id would mean nothing in another container or on another machine. The database itself is
not changed.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
from pathlib import Path

from rocksdict import AccessType, Rdict

from kbroker.errors import OperatorError
from kbroker.storage.rocksdb.database import open_rdict, wal_and_current

DATABASE = "db"
READERS = "readers"
ATTEMPTS = 20

_numbers = itertools.count()


class RocksdbSnapshot:
    """`db` shows one moment, until `renew` or `close`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._seen: object = None
        self._copy: Path | None = None
        self._held = -1
        self._take()

    def renew(self) -> bool:
        """Show the current database; False if it has not changed."""
        if self._seen == wal_and_current(self.directory / DATABASE):
            return False
        self.close()
        self._take()
        return True

    def close(self) -> None:
        if self._copy is not None:
            self.db.close()
            _give_up(self._copy, self._held)
            self._copy = None

    def _take(self) -> None:
        source = self.directory / DATABASE
        if not (source / "CURRENT").exists():
            raise OperatorError(f"{self.directory} holds no RocksDB database")
        remove_left_over_snapshots(self.directory)
        problem: Exception | None = None
        for _ in range(ATTEMPTS):
            copy, held = self.directory / READERS / f"{os.getpid()}-{next(_numbers)}", -1
            try:
                copy.mkdir(parents=True)
                held = os.open(copy, os.O_RDONLY)
                fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
                seen = wal_and_current(source)
                _link(source, copy)
                self.db: Rdict = open_rdict(copy, AccessType.read_only(False))
            except PermissionError as error:
                raise OperatorError(
                    f"{self.directory}: reading needs permission to write there: use the broker's user"
                ) from error
            # a file disappeared meanwhile, or rocksdict's plain Exception for that
            except Exception as error:
                problem = error
                _give_up(copy, held)
                continue
            self._seen, self._copy, self._held = seen, copy, held
            return
        advice = "try again; where no broker is running, restore a backup"
        raise OperatorError(
            f"{self.directory}: no consistent copy in {ATTEMPTS} attempts ({problem}): {advice}"
        ) from problem


def _link(source: Path, copy: Path) -> None:
    for path in source.glob("*.log"):
        os.link(path, copy / path.name)
    current = (source / "CURRENT").read_text()
    shutil.copyfile(source / current.strip(), copy / current.strip())
    (copy / "CURRENT").write_text(current)
    for path in source.glob("*.sst"):
        os.link(path, copy / path.name)


def _give_up(copy: Path, held: int) -> None:
    """Remove the copy, then its lock, so that no other process takes it for a left-over
    meanwhile."""
    shutil.rmtree(copy, ignore_errors=True)
    if held >= 0:
        os.close(held)


def remove_left_over_snapshots(directory: Path) -> None:
    """Remove the snapshots of readers that have ended. Those that this process may not remove are
    left to their owner or the broker."""
    for copy in (directory / READERS).glob("*"):
        try:
            held = os.open(copy, os.O_RDONLY)
        except OSError:  # removed meanwhile, or another user's
            continue
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(copy, ignore_errors=True)
        except OSError:  # in use, or flock is not supported: then all are taken to be in use
            continue
        finally:
            os.close(held)
