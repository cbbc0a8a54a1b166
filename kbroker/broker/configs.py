"""The settings of groups and of the broker that clients have altered: the stored values, the
effective ones, and how both change.

Save, then apply: an altered setting takes effect when its record is committed, never before. Topics
keep their own settings (topics.py). Stored values were checked when they were altered
(kbroker.settings.altering). Bounds may have changed since: a group's value outside the broker's
bounds is clamped when it is read, and an altered broker setting that no longer fits the static ones
is left out at start, each with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

import trio

from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.state import Config, ConfigKey, ResourceType, read_entries
from kbroker.groups.classic.messages import ClassicGroupSettings
from kbroker.groups.consumer.messages import ConsumerGroupSettings, MigrationPolicy
from kbroker.groups.offsets.messages import OffsetsSettings
from kbroker.groups.share.messages import ShareGroupSettings
from kbroker.settings.altering import BrokerConfig, GroupConfig
from kbroker.settings.queue import (
    ASSIGNMENT,
    IN_FLIGHT_LIMIT,
    LOCK_MAX,
    ORDERING,
    PARK_FROM_MS,
    PAUSED,
    PREFETCH,
    PRIORITIES,
    QUEUE_CONFIGS,
    REDELIVERY_DELAY,
    REDELIVERY_JITTER,
    REDELIVERY_MAX,
    REDELIVERY_MULTIPLIER,
    SCHEDULING,
    SCHEDULING_MAX_DELAY,
    TTL,
    parse_priorities,
)
from kbroker.share.dead_letter import Contents, DeadLetterQueue
from kbroker.share.effects import ShareSettings
from kbroker.share.redelivery import Redelivery
from kbroker.storage.spi import Change, StateStore

logger = logging.getLogger(__name__)

NOT_WITHOUT_PARKING = (
    "{setting} needs a persister and a state storage engine that keep parked records, and one of these "
    "does not: "
    "choose others at start (kbroker.persister, --state-storage), or leave it {off} (`kbroker queues "
    "create --{option} {off}`)"
)
_NEED_PARKING = ((SCHEDULING, "false", "scheduling"), (TTL, "0", "ttl"))
"""Settings, their values when off, and their command-line options."""
NO_ORDER_WITHOUT_PARKING = (
    f"{ORDERING} needs a persister and a state storage engine that keep parked records, and one of these "
    "does not: choose others at start (kbroker.persister, --state-storage), or leave it none (`kbroker "
    "queues create --ordering none`)"
)
OUT_OF_BOUNDS = "group %s: %s=%s is out of the broker's bounds, %s applies"
TOO_SHORT = "group %s: members would be removed between two heartbeats: %s"


class ConfigsStatistics(NamedTuple):
    """The number of groups with settings of their own, and of broker settings that clients have
    altered."""

    groups: int
    broker_settings: int


class Configs:
    """The settings of this broker and its groups.

    - `broker`: the broker's own settings
    - `parks_records`: whether the persister and the store below it keep parked records
    - `group_watchers`: each is called with the id of a group whose settings were altered, or with
      None after an alteration of the broker's settings, which may concern any group
    - `altering`: held by every caller that alters settings, even those of a topic, from reading the
          stored ones until the new ones are saved
    """

    def __init__(
        self,
        config: BrokerConfig,
        state_store: StateStore,
        state: GroupCommit[Change],
        *,
        parks_records: bool = False,
    ) -> None:
        self.broker = config
        self._store = state_store
        self._state = state
        self._stored: dict[str, Mapping[str, str]] = {}
        self._groups: dict[str, GroupConfig] = {}
        self._without_own = GroupConfig({}, config)
        self._share_settings: dict[GroupConfig, ShareSettings] = {}  # read by every fetch
        self.altering = trio.Lock()
        self.parks_records = parks_records
        self.group_watchers: list[Callable[[str | None], None]] = []

    def statistics(self) -> ConfigsStatistics:
        return ConfigsStatistics(
            len(self._groups), len(self.broker.dynamic) + len(self.broker.dynamic_default)
        )

    def load(self) -> None:
        """Load the stored settings, at start."""
        dynamic: dict[bool, Mapping[str, str]] = {True: {}, False: {}}
        groups: dict[str, Mapping[str, str]] = {}
        for key, value in read_entries(self._store.scan(ConfigKey.namespace)):
            assert isinstance(key, ConfigKey)
            assert isinstance(value, Config)
            if key.resource_type is ResourceType.GROUP:
                groups[key.name] = value.entries
            elif key.resource_type is ResourceType.BROKER:
                dynamic[not key.name] = value.entries
        self._load_dynamic(dynamic_default=dynamic[True], dynamic=dynamic[False])
        for group_id, entries in groups.items():  # After the broker's settings, which set the bounds.
            self._put_group(group_id, entries)

    def _load_dynamic(self, *, dynamic_default: Mapping[str, str], dynamic: Mapping[str, str]) -> None:
        for left_out in self.broker.set_dynamic_where_it_fits(dynamic_default, dynamic):
            logger.warning(
                "an altered broker setting does not apply, since it does not fit the others any more: %s",
                left_out,
            )
        altered = {**self.broker.dynamic_default, **self.broker.dynamic}
        for name in sorted(self.broker.static.keys() & altered.keys()):
            if altered[name] != self.broker.static[name]:
                logger.info(
                    "%s=%s was altered while running and overrides the %s of this start; to undo that: %s",
                    name, altered[name], self.broker.static[name], self._deletion(name),
                )  # fmt: skip

    def _deletion(self, name: str) -> str:
        """The commands after which the value given at start applies. A value altered for this
        broker hides one altered for all brokers."""
        layers = {str(self.broker["node.id"]): self.broker.dynamic, '""': self.broker.dynamic_default}
        static = self.broker.static[name]
        set_by = [broker for broker, layer in layers.items() if layer.get(name, static) != static]
        return " && ".join(f"kbroker configs delete --broker {broker} {name}" for broker in set_by)

    # -- groups
    # ----------------------------------------------------------------------------------------------

    def group(self, group_id: str) -> GroupConfig:
        """A group's effective settings, with the broker's settings and bounds applied. The group
        need not exist."""
        return self._groups.get(group_id, self._without_own)

    def stored_group(self, group_id: str) -> Mapping[str, str]:
        """The settings stored for a group."""
        return self._stored.get(group_id, {})

    def groups_with_configs(self) -> list[str]:
        return sorted(self._stored)

    def check_group(self, entries: Mapping[str, str]) -> None:
        """Raises KafkaError for what this broker's stores cannot do."""
        for setting, off, option in _NEED_PARKING if not self.parks_records else ():
            if entries.get(setting, off) != off:
                message = NOT_WITHOUT_PARKING.format(setting=setting, off=off, option=option)
                raise KafkaError(ErrorCode.invalid_config, message)
        if entries.get(ORDERING) == "key" and not self.parks_records:
            raise KafkaError(ErrorCode.invalid_config, NO_ORDER_WITHOUT_PARKING)

    async def set_group(self, group_id: str, entries: Mapping[str, str]) -> None:
        """Replace a group's settings, which the caller has checked. Durable and in force on return.
        Raises NoSpace, StoreFailed, and KafkaError for what this broker's stores cannot do."""
        self.check_group(entries)
        await self._save(ConfigKey(ResourceType.GROUP, group_id), entries)
        self._put_group(group_id, entries)
        self._notify(group_id)

    def removal_of_group(self, group_id: str) -> list[Change]:
        """Changes for the commit that deletes a group. After it, call `group_removed`."""
        return [(ConfigKey(ResourceType.GROUP, group_id).encode(), None)] if group_id in self._stored else []

    def group_removed(self, group_id: str) -> None:
        if group_id in self._stored:
            self._put_group(group_id, {})
            self._notify(group_id)

    def _put_group(self, group_id: str, entries: Mapping[str, str]) -> None:
        self._share_settings.clear()
        if not entries:
            self._stored.pop(group_id, None)
            self._groups.pop(group_id, None)
            return
        self._stored[group_id] = dict(entries)
        self._groups[group_id] = GroupConfig(entries, self.broker)
        for line in self._doubts(group_id):
            logger.warning(*line)

    def _doubts(self, group_id: str) -> list[tuple[str, ...]]:
        """Log lines, with their arguments, about settings of the group that the broker's bounds
        change."""
        config, entries = self._groups[group_id], self._stored[group_id]
        lines: list[tuple[str, ...]] = [
            (OUT_OF_BOUNDS, group_id, name, entries[name], str(value))
            for name, value in config.clamped().items()
        ]
        for contradiction in config.timeouts_too_short():
            lines.append((TOO_SHORT, group_id, contradiction))
        return lines

    def share_settings(self, group_id: str) -> ShareSettings:
        config = self.group(group_id)
        if (known := self._share_settings.get(config)) is not None:
            return known
        is_ordered = config[ORDERING] == "key" and self.parks_records
        self._share_settings[config] = settings = ShareSettings(
            delivery_count_limit=config["share.delivery.count.limit"],
            lock_duration_ms=config["share.record.lock.duration.ms"],
            max_record_locks=config["share.partition.max.record.locks"],
            renew_enabled=config["share.renew.acknowledge.enable"],
            dead_letter_queue=bool(config["errors.deadletterqueue.topic.name"]),
            prefetch=config[PREFETCH],
            redelivery=_redelivery(config),
            lock_max_ms=config[LOCK_MAX],
            park_from_ms=PARK_FROM_MS,
            limits_undecided=config[IN_FLIGHT_LIMIT] == "undecided",
            scans=((config[SCHEDULING] or config[TTL] > 0) and self.parks_records) or is_ordered,
            schedules=config[SCHEDULING],
            max_delay_ms=config[SCHEDULING_MAX_DELAY],
            paused=config[PAUSED],
            ttl_ms=config[TTL] if self.parks_records else 0,
            priorities=tuple(parse_priorities(config[PRIORITIES]).items()),
            ordered=is_ordered,
            read_committed=config["share.isolation.level"] == "read_committed",
            is_queue=any(config[each.name] != each.default_value() for each in QUEUE_CONFIGS),
        )
        return settings

    def dead_letter_queue(self, group_id: str) -> DeadLetterQueue:
        config = self.group(group_id)
        contents = Contents(
            key_and_value=config["errors.deadletterqueue.copy.record.enable"],
            headers=config["kbroker.errors.deadletterqueue.keep.headers.enable"],
            timestamp=config["kbroker.errors.deadletterqueue.keep.timestamp.enable"],
        )
        return DeadLetterQueue(config["errors.deadletterqueue.topic.name"], contents)

    def group_settings(self, group_id: str) -> ShareGroupSettings:
        config = self.group(group_id)
        return ShareGroupSettings(
            session_timeout_ms=config["share.session.timeout.ms"],
            heartbeat_interval_ms=config["share.heartbeat.interval.ms"],
            assignment_interval_ms=config["share.assignment.interval.ms"],
            initialize_retry_interval_ms=self.broker["group.share.initialize.retry.interval.ms"],
            max_size=self.broker["group.share.max.size"],
            assignor=config[ASSIGNMENT],
        )

    def max_share_sessions(self) -> int:
        most: int = self.broker["group.share.max.share.sessions"]
        return most

    def reset_policy(self, group_id: str) -> str:
        """earliest, latest or by_duration:<ISO 8601 duration>."""
        policy: str = self.group(group_id)["share.auto.offset.reset"]
        return policy

    def classic_group_settings(self) -> ClassicGroupSettings:
        return ClassicGroupSettings(
            min_session_timeout_ms=self.broker["group.min.session.timeout.ms"],
            max_session_timeout_ms=self.broker["group.max.session.timeout.ms"],
            initial_rebalance_delay_ms=self.broker["group.initial.rebalance.delay.ms"],
            max_size=self.broker["group.max.size"],
        )

    def consumer_group_settings(self, group_id: str) -> ConsumerGroupSettings:
        """Also used for classic groups, which may be converted to consumer groups."""
        config = self.group(group_id)
        return ConsumerGroupSettings(
            session_timeout_ms=config["consumer.session.timeout.ms"],
            heartbeat_interval_ms=config["consumer.heartbeat.interval.ms"],
            assignment_interval_ms=config["consumer.assignment.interval.ms"],
            max_size=self.broker["group.consumer.max.size"],
            migration_policy=MigrationPolicy(self.broker["group.consumer.migration.policy"].lower()),
            classic_max_size=self.broker["group.max.size"],
        )

    def offsets_settings(self) -> OffsetsSettings:
        retention_ms = self.broker["offsets.retention.minutes"] * 60_000
        return OffsetsSettings(
            retention_ms=retention_ms, metadata_max_bytes=self.broker["offset.metadata.max.bytes"]
        )

    # -- the broker
    # ----------------------------------------------------------------------------------------------

    def stored_broker(self, name: str) -> Mapping[str, str]:
        """The settings altered for this broker, or for all brokers (`name` "")."""
        return self.broker.dynamic if name else self.broker.dynamic_default

    async def set_broker(self, name: str, entries: Mapping[str, str]) -> None:
        """Replace the settings altered for this broker or, with `name` "", for all brokers. The
        rest is as in set_group."""
        await self._save(ConfigKey(ResourceType.BROKER, name), entries)
        before = {group_id: self._doubts(group_id) for group_id in self._groups}
        if name:
            self.broker.set_dynamic(self.broker.dynamic_default, entries)
        else:
            self.broker.set_dynamic(entries, self.broker.dynamic)
        self._share_settings.clear()
        for group_id, known in before.items():
            for line in self._doubts(group_id):
                if line not in known:
                    logger.warning(*line)
        self._notify(None)

    def _notify(self, group_id: str | None) -> None:
        for watcher in self.group_watchers:
            watcher(group_id)

    async def _save(self, key: ConfigKey, entries: Mapping[str, str]) -> None:
        await self._state.commit([(key.encode(), Config(entries).encode() if entries else None)])


def _redelivery(config: GroupConfig) -> Redelivery | None:
    delay_ms = config[REDELIVERY_DELAY]
    if not delay_ms:
        return None
    return Redelivery(
        delay_ms, config[REDELIVERY_MULTIPLIER], config[REDELIVERY_MAX], config[REDELIVERY_JITTER]
    )
