"""A segment store whose process has died, and the store that is opened afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kbroker.storage.segment.log_store import SegmentLogStore
from tests.storage.faulty_files import FaultyFiles


def crash(store: SegmentLogStore) -> None:
    """Simulate the end of the process: nothing is synced, saved or removed any more."""
    if not store._failures.closed:
        store._failures.closed = True
        store._release()


@contextmanager
def reopened(
    directory: Path, files: FaultyFiles | None = None, options: Mapping[str, str] | None = None
) -> Iterator[SegmentLogStore]:
    store = SegmentLogStore(directory, options, files=files)
    try:
        yield store
    finally:
        store.close()
