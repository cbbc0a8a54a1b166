"""The fixtures that the contract suites of log stores and state stores share: a directory, and an
open store in it. This module must not know any engine."""

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
    """Base of the contract suites: opens, reads and reopens stores of `factory`."""

    factory: ClassVar[Any]
    """A LogStoreFactory or StateStoreFactory."""
    options: ClassVar[Mapping[str, str]] = {}
    durable: ClassVar[bool] = True
    """False for an engine that loses its contents on close(): tests that reopen a store are then
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
            pytest.skip("this engine loses its contents on close()")
        store.close()
        with self.opened(directory) as again:
            yield again
