"""An open engine: what the contract suites of logs and of state share. It must not
know any engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import pytest


class Closes(Protocol):
    def close(self) -> None: ...


Store = TypeVar("Store", bound=Closes)
Reader = TypeVar("Reader", bound=Closes)


class OpenedEngine(Generic[Store, Reader]):
    """A factory, a directory, a store that is open."""

    factory: ClassVar[Any]
    """A LogStoreFactory or StateStoreFactory."""
    options: ClassVar[Mapping[str, str]] = {}
    durable: ClassVar[bool] = True
    """False for an engine whose contents end with close(): tests that open a store again are then
    skipped."""

    @pytest.fixture
    def directory(self, tmp_path: Path) -> Path:
        return tmp_path / "store"

    @pytest.fixture
    def store(self, directory: Path) -> Iterator[Store]:
        with self.opened(directory) as store:
            yield store

    @contextmanager
    def opened(self, directory: Path) -> Iterator[Store]:
        store = self.factory.open(directory, self.options, 1)
        try:
            yield store
        finally:
            store.close()

    @contextmanager
    def reading(self, directory: Path) -> Iterator[Reader]:
        reader = self.factory.open_reader(directory)
        try:
            yield reader
        finally:
            reader.close()

    @contextmanager
    def reopened(self, store: Store, directory: Path) -> Iterator[Store]:
        if not self.durable:
            pytest.skip("contents of this engine end with close()")
        store.close()
        with self.opened(directory) as again:
            yield again
