"""What a failed file operation does to a segment store: this call fails, or all later writes do."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from kbroker.errors import NoFiles, NoSpace, StoreFailed
from kbroker.storage.files import NO_FILES, REFUSALS
from kbroker.storage.segment.spare import SpareFiles

logger = logging.getLogger(__name__)


class Failures:
    """- `reason`: why the store accepts no more writes; None while it accepts them
    - `spare`: open files for work that cannot stop halfway"""

    def __init__(self, directory: Path, spare: SpareFiles) -> None:
        self._directory = directory
        self.spare = spare
        self.reason: str | None = None
        self.closed = False

    def check(self) -> None:
        """Raises StoreFailed if an earlier operation has failed."""
        assert not self.closed, "the store is closed"
        if self.reason is not None:
            raise StoreFailed(self.reason)

    def refuse(self, action: str, error: OSError, undo: Callable[[], None]) -> NoReturn:
        """Undo the call, then raise NoSpace if the disk is full and the undo worked, NoFiles if the
        process (or the system) has no more open files, StoreFailed otherwise."""
        if error.errno not in REFUSALS:
            self.fail(action, error)
        try:
            with self.spare.given_up():
                undo()
        except OSError as second:
            self.fail(action, second)
        text = f"cannot {action} {self._directory}: {os.strerror(error.errno or 0)}"
        if error.errno in NO_FILES:
            raise NoFiles(f"{text}; {NoFiles.remedy}") from error
        raise NoSpace(text) from error

    def fail(self, action: str, error: OSError) -> NoReturn:
        where = error.filename or self._directory
        self.reason = (
            f"cannot {action} {where}: {os.strerror(error.errno or 0)}; no more writes until restart"
        )
        logger.error("%s", self.reason)
        raise StoreFailed(self.reason) from error

    @contextmanager
    def removing(self, action: str) -> Iterator[None]:
        """For removals: one that stops halfway cannot be undone, so every error fails the store."""
        try:
            with self.spare.given_up():
                yield
        except OSError as error:
            self.fail(action, error)
        except NoSpace as error:
            self.reason = str(error)
            raise StoreFailed(self.reason) from error
