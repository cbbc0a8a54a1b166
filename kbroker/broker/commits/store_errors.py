"""Errors of the stores while the broker starts and stops, as one line for the operator."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kbroker.errors import NoFiles, NoSpace, OperatorError, StoreFailed
from kbroker.storage.files import NO_FILES, NO_SPACE
from kbroker.storage.spi import LogStore, StateStore

logger = logging.getLogger(__name__)


@contextmanager
def starting(data_dir: Path) -> Iterator[None]:
    """Errors of the stores before the broker runs (no space, a failing disk, damaged values) become
    one line for the operator."""
    try:
        yield
    except (NoSpace, StoreFailed, OSError, ValueError) as error:
        if (lack := _lack(error)) is not None:
            raise OperatorError(
                f"{data_dir}: {lack.shortage}: {_one_line(error)}; {lack.remedy} and start again"
            ) from error
        logger.debug("start-up ended here", exc_info=True)
        raise OperatorError(
            f"cannot use the data in {data_dir}: {_one_line(error)}; check it with `kbroker storage inspect "
            "--check`, and restore it from a backup if it is damaged"
        ) from error


def _lack(error: Exception) -> type[NoSpace] | None:
    if isinstance(error, OSError):
        return NoFiles if error.errno in NO_FILES else NoSpace if error.errno in NO_SPACE else None
    return type(error) if isinstance(error, NoSpace) else None


def close(store: LogStore | StateStore) -> None:
    try:
        store.close()
    except StoreFailed as error:
        raise OperatorError(
            f"stopped, but not cleanly: {_one_line(error)}; the next start recovers as after a crash"
        ) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
