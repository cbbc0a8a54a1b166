"""One pair of brokers for the chapters of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka_tools.side_by_side.pair import Pair, running_pair


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running_pair(tmp_path_factory.mktemp("kafka")) as running:
        yield running
