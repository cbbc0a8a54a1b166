"""One Spark session for all tests of a run, and one broker per engine; tests keep apart by topic and group.

What a test needs a stopped, killed or emptied broker for, it starts itself with `kbroker.testing.broker.open_test_broker`. Filling topics
and reading them as a Kafka consumer does is in `spark.tests.filling`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeAlias

import pytest

from kbroker.testing.broker import RunningBroker, open_test_broker
from spark.tests.filling import KEPT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENGINES = ("segment", "lmdb", "rocksdb", "sqlite")
"""Those that keep anything; `sqlite` is a plugin."""
BrokerOf: TypeAlias = Callable[[str], RunningBroker]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two workers, two partitions after a shuffle, no UI, UTC; its own files lie in a temporary directory."""
    from kbroker_spark.session import session

    home = tmp_path_factory.mktemp("spark")
    spark = session(
        "tests",
        **{
            "spark.master": "local[2]",
            "spark.sql.shuffle.partitions": 2,
            "spark.driver.memory": "1g",
            # Half the processor time for jobs as small as those of tests: the thorough compiler would cost more than it saves.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.local.dir": home / "local",
            "spark.sql.warehouse.dir": home / "warehouse",
        },
    )
    yield spark
    spark.stop()


@pytest.fixture(scope="session")
def broker_of() -> Iterator[BrokerOf]:
    """A running broker on the named engine, the same one for all tests: `broker_of("lmdb")`."""
    brokers: dict[str, RunningBroker] = {}
    with ExitStack() as stack:

        def running(engine: str) -> RunningBroker:
            if engine not in brokers:
                brokers[engine] = stack.enter_context(open_test_broker(storage=engine, config=KEPT))
            return brokers[engine]

        yield running


@pytest.fixture
def engine() -> str:
    """Tests that concern every engine parametrize this, with ENGINES."""
    return "segment"


@pytest.fixture
def broker(broker_of: BrokerOf, engine: str) -> RunningBroker:
    return broker_of(engine)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for topics and groups that no other test uses."""
    return re.sub(r"[^\w.-]+", "-", request.node.name).strip("-")
