"""The cached share settings of fetches: an alteration takes effect at once."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import cast

import pytest
import trio

from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.configs import Configs
from kbroker.settings.altering import BrokerConfig
from kbroker.settings.definition import ConfigDef, ConfigType
from kbroker.settings.queue import QUEUE_CONFIGS
from kbroker.storage.memory_store import MemoryStateStore
from kbroker.storage.spi import Change

LOCK = "share.record.lock.duration.ms"
BROKER_LOCK = "group.share.record.lock.duration.ms"


class Commits:
    """A group commit that saves at once."""

    def __init__(self, store: MemoryStateStore) -> None:
        self._store = store

    async def commit(self, items: Sequence[Change]) -> None:
        self._store.write(items)


@pytest.fixture
def configs() -> Configs:
    return _configs({})


def _configs(given: dict[str, str]) -> Configs:
    store = MemoryStateStore({})
    commits = cast(GroupCommit[Change], Commits(store))
    return Configs(BrokerConfig.load((), given), store, commits, parks_records=True)


def test_a_group_of_its_own_settings(configs: Configs) -> None:  # CFG-42
    before = configs.share_settings("g")
    trio.run(configs.set_group, "g", {LOCK: "20000"})
    assert configs.share_settings("g").lock_duration_ms == 20_000
    assert configs.share_settings("other") == before
    trio.run(configs.set_group, "g", {LOCK: "25000"})
    assert configs.share_settings("g").lock_duration_ms == 25_000
    trio.run(configs.set_group, "g", {})
    assert configs.share_settings("g") == before


@pytest.mark.parametrize("setting", QUEUE_CONFIGS, ids=attrgetter("name"))
def test_what_makes_a_group_a_queue(configs: Configs, setting: ConfigDef) -> None:
    assert setting.default is not None
    trio.run(configs.set_group, "g", {setting.name: setting.default, LOCK: "20000"})
    assert not configs.share_settings("g").is_queue
    others = {ConfigType.BOOLEAN: "true", ConfigType.LIST: "urgent=10"}
    other = setting.choices[-1] if setting.choices else others.get(setting.type, "9000")
    if setting.maximum is not None and setting.maximum < 9000:
        other = "1"
    trio.run(configs.set_group, "g", {setting.name: other})
    assert configs.share_settings("g").is_queue
    assert not configs.share_settings("other").is_queue


def test_the_brokers_settings(configs: Configs) -> None:
    trio.run(configs.set_group, "g", {LOCK: "20000"})
    assert configs.share_settings("other").lock_duration_ms == 30_000
    trio.run(configs.set_broker, "", {BROKER_LOCK: "40000"})
    assert configs.share_settings("other").lock_duration_ms == 40_000
    assert configs.share_settings("g").lock_duration_ms == 20_000


def test_what_the_group_coordinator_goes_by() -> None:
    given = {
        "group.share.initialize.retry.interval.ms": "1234",
        "group.share.assignment.interval.ms": "5",
        "group.share.max.size": "7",
    }
    settings = _configs(given).group_settings("g")
    assert (settings.initialize_retry_interval_ms, settings.assignment_interval_ms, settings.max_size) == (
        1234,
        5,
        7,
    )
    assert _configs({}).group_settings("g").initialize_retry_interval_ms == 30_000
