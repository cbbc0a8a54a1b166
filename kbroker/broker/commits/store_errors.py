"""Errors of the stores while the broker starts and stops, as one line for the operator."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kbroker.errors import NoSpace, OperatorError, StoreFailed
from kbroker.storage.spi import LogStore, StateStore

logger = logging.getLogger(__name__)


@contextmanager
def starting(data_dir: Path) -> Iterator[None]:
    """Errors of the stores before the broker runs (no space, a failing disk, damaged values) become
    one line for the operator."""
    try:
        yield
    except NoSpace as error:
        raise OperatorError(
            f"{data_dir}: {error.shortage}: {_one_line(error)}; {error.remedy} and start again"
        ) from error
    except (StoreFailed, OSError, ValueError) as error:
        logger.debug("start-up ended here", exc_info=True)
        raise OperatorError(
            f"cannot use the data in {data_dir}: {_one_line(error)}; check it with `kbroker storage inspect "
            "--check`, and restore it from a backup if it is damaged"
        ) from error


def close(store: LogStore | StateStore) -> None:
    try:
        store.close()
    except StoreFailed as error:
        raise OperatorError(
            f"stopped, but not cleanly: {_one_line(error)}; the next start recovers as after a crash"
        ) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
