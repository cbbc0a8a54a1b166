"""A reader's own copy of a RocksDB database that a broker is writing: hard links, so nothing is copied but the manifest.

RocksDB's read-only and secondary modes show a hole in the middle of a log now and then when opened beside heavy writing. Linking the
files in the right order does not: first the WAL, then CURRENT and the manifest it names, then the table files. So every record is
either in a linked WAL or in a table of the later manifest. A table that vanished between means: begin again.

The copy lies in the `readers` folder beside the database (hard links do not cross file systems) and is removed by `close`;
those of readers that were killed are removed when a store opens. Nothing of the database itself is touched.
"""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

from rocksdict import AccessType, Rdict

from kbroker.errors import OperatorError
from kbroker.storage.rocksdb_database import open_rdict, wal_and_current

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
        self._take()

    def renew(self) -> bool:
        """Look at what the database is now; False when it has not changed."""
        if self._seen == wal_and_current(self.directory / DATABASE):
            return False
        self.close()
        self._take()
        return True

    def close(self) -> None:
        if self._copy is not None:
            self.db.close()
            shutil.rmtree(self._copy)
            self._copy = None

    def _take(self) -> None:
        source = self.directory / DATABASE
        if not (source / "CURRENT").exists():
            raise OperatorError(f"{self.directory} holds no RocksDB database")
        problem: Exception | None = None
        for _ in range(ATTEMPTS):
            copy = self.directory / READERS / f"{os.getpid()}-{next(_numbers)}"
            try:
                copy.mkdir(parents=True)
                seen = wal_and_current(source)
                _link(source, copy)
                self.db: Rdict = open_rdict(copy, AccessType.read_only(False))
            except PermissionError as error:
                raise OperatorError(f"{self.directory}: reading needs permission to write there: use the broker's user") from error
            except Exception as error:  # a file vanished under us, or rocksdict's plain Exception for the same
                problem = error
                shutil.rmtree(copy, ignore_errors=True)
                continue
            self._seen, self._copy = seen, copy
            return
        raise OperatorError(f"{self.directory}: no consistent copy in {ATTEMPTS} attempts: {problem}") from problem


def _link(source: Path, copy: Path) -> None:
    for path in source.glob("*.log"):
        os.link(path, copy / path.name)
    current = (source / "CURRENT").read_text()
    shutil.copyfile(source / current.strip(), copy / current.strip())
    (copy / "CURRENT").write_text(current)
    for path in source.glob("*.sst"):
        os.link(path, copy / path.name)


def remove_left_over_snapshots(directory: Path) -> None:
    """Those of processes that are no more."""
    readers = directory / READERS
    if not readers.is_dir():
        return
    for copy in readers.iterdir():
        process = copy.name.partition("-")[0]
        if process.isdecimal() and not _is_running(int(process)):
            shutil.rmtree(copy, ignore_errors=True)


def _is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
