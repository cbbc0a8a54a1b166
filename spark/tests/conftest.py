"""One Spark session for all tests of a run, and one broker per engine (`tests.brokers`).

`spark.tests.filling` fills topics and reads them as a Kafka consumer does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

from spark.tests.filling import KEPT
from tests.brokers import broker, broker_of, engine, name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["broker", "broker_of", "engine", "name"]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two workers, two partitions after a shuffle, no UI, UTC; its own files are in a temporary
    directory."""
    from kbroker_spark.session import session

    home = tmp_path_factory.mktemp("spark")
    spark = session(
        "tests",
        **{
            "spark.master": "local[2]",
            "spark.sql.shuffle.partitions": 2,
            "spark.driver.memory": "1g",
            # Half the processor time for jobs as small as those of tests: the thorough compiler,
            # classes generated for each plan and adaptive plans cost more than they save. Rows do
            # not depend on them; `test_session` keeps the users' defaults.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.adaptive.enabled": "false",
            "spark.local.dir": home / "local",
            "spark.sql.warehouse.dir": home / "warehouse",
        },
    )
    yield spark
    spark.stop()


@pytest.fixture(scope="session")
def broker_config() -> Mapping[str, str]:
    return KEPT
