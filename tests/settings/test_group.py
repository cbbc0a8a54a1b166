"""A group's settings: the broker's bounds for them, the reset policy, and which values apply when
the bounds are narrowed later."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.errors import ErrorCode, KafkaError
from kbroker.settings.altering import (
    BrokerConfig,
    GroupConfig,
    Scope,
    Source,
    Synonym,
    describe,
    replace_all,
    reset_duration_ms,
)
from kbroker.settings.broker import BROKER_CONFIGS
from kbroker.settings.broker_groups import GROUP_CONSUMER_TRIPLES
from kbroker.settings.broker_share_groups import GROUP_SHARE_TRIPLES
from kbroker.settings.group_configs import GROUP_CONFIGS

DEFAULTS = BrokerConfig.load()
RESET = "share.auto.offset.reset"


def stored(**entries: str) -> dict[str, str]:
    return replace_all(
        Scope.GROUP, [(name.replace("_", "."), value) for name, value in entries.items()], DEFAULTS
    )


def refused(name: str, value: str, broker: BrokerConfig = DEFAULTS) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        replace_all(Scope.GROUP, [(name, value)], broker)
    assert caught.value.code is ErrorCode.invalid_config
    return caught.value


TRIPLES = [
    *(("share", triple) for triple in GROUP_SHARE_TRIPLES),
    *(("consumer", triple) for triple in GROUP_CONSUMER_TRIPLES),
]


@pytest.mark.parametrize(("kind", "triple"), TRIPLES)
# CFG-17, CFG-23, CFG-26, CFG-27
def test_the_broker_gives_defaults_and_bounds(kind: str, triple: str) -> None:
    name, least, most = f"{kind}.{triple}", f"group.{kind}.min.{triple}", f"group.{kind}.max.{triple}"
    assert (
        GroupConfig({}, DEFAULTS)[name]
        == DEFAULTS[f"group.{kind}.{triple}"]
        == GROUP_CONFIGS[name].default_value()
    )
    for value in (DEFAULTS[least], DEFAULTS[most]):
        own = stored(**{name.replace(".", "_"): str(value)})
        assert GroupConfig(own, DEFAULTS)[name] == value
        assert GroupConfig(own, DEFAULTS).clamped() == {}
    over = DEFAULTS[most] + 1
    assert refused(name, str(over)).message == (
        f"{name} must be less than or equal to {most}, which is {DEFAULTS[most]}; "
        f"{_to_move('raise', kind, most, over)}"
    )
    below = DEFAULTS[least] - 1
    if below >= int(GROUP_CONFIGS[name].minimum or 0):
        assert refused(name, str(below)).message == (
            f"{name} must be greater than or equal to {least}, which is {DEFAULTS[least]}; "
            f"{_to_move('lower', kind, least, below)}"
        )
    else:
        assert refused(name, str(below)).message == (
            f"Invalid value {below} for configuration {name}: Value must be at least "
            f"{GROUP_CONFIGS[name].minimum}"
        )


def _to_move(verb: str, kind: str, bound: str, value: int) -> str:
    """Bounds of share groups are altered, those of consumer groups are set at the start."""
    if kind == "share":
        return f"to {verb} that first: kbroker configs set --broker 1 {bound}={value}"
    return f"to {verb} that, start the broker with --config {bound}={value}"


def test_a_bound_that_cannot_be_moved_so_far_says_where_it_ends() -> None:  # CFG-27
    name = "share.record.lock.duration.ms"
    assert refused(name, "3600001").message == (
        f"{name} must be less than or equal to group.{name.replace('record', 'max.record')}, which is 60000; "
        "that cannot be raised above 3600000"
    )


@pytest.mark.parametrize(("kind", "triple"), TRIPLES)
def test_narrowed_bounds_hold_for_what_was_set_before(kind: str, triple: str) -> None:  # CFG-24
    name, least, most = f"{kind}.{triple}", f"group.{kind}.min.{triple}", f"group.{kind}.max.{triple}"
    default = BROKER_CONFIGS[f"group.{kind}.{triple}"].default
    assert default is not None
    highest, lowest = {name: str(DEFAULTS[most])}, {name: str(DEFAULTS[least])}
    narrow = BrokerConfig.load([f"{least}={default}", f"{most}={default}"])
    assert GroupConfig(highest, narrow)[name] == narrow[most]
    assert GroupConfig(lowest, narrow)[name] == narrow[least]
    assert set(GroupConfig(highest, narrow).clamped()) == (
        {name} if narrow[most] != DEFAULTS[most] else set()
    )


@pytest.mark.parametrize("kind", ["share", "consumer"])
def test_session_timeout_is_checked_against_the_effective_heartbeat(kind: str) -> None:  # CFG-28
    broker = BrokerConfig.load([f"group.{kind}.min.session.timeout.ms=1000"])
    message = (
        f"{kind}.session.timeout.ms (5000) must be greater than {kind}.heartbeat.interval.ms (5000); "
        "raise the one or lower the other"
    )
    assert refused(f"{kind}.session.timeout.ms", "5000", broker).message == message
    assert replace_all(Scope.GROUP, [(f"{kind}.session.timeout.ms", "5001")], broker) == {
        f"{kind}.session.timeout.ms": "5001"
    }


def test_messages() -> None:  # CFG-25, CFG-26
    assert refused("share.delivery.count.limit", "1").message == (
        "Invalid value 1 for configuration share.delivery.count.limit: Value must be at least 2"
    )
    unknown = "Unknown group config name: group.share.isolation.level. Did you mean share.isolation.level?"
    assert refused("group.share.isolation.level", "x").message == unknown
    for later in ("streams.assignor.offload.enable", "streams.num.standby.replicas"):
        assert (refused(later, "1").message or "").startswith(f"Unknown group config name: {later}")


def test_letter_case_and_blanks() -> None:  # CFG-19, CFG-29
    assert stored(share_renew_acknowledge_enable=" FALSE ") == {"share.renew.acknowledge.enable": "false"}
    assert stored(share_isolation_level=" read_committed ") == {"share.isolation.level": "read_committed"}
    refused("share.isolation.level", "READ_COMMITTED")
    refused(RESET, "Earliest")
    refused("share.renew.acknowledge.enable", "yes")


def test_dead_letter_settings() -> None:
    """DLQ-2, CFG-21: any topic name except Kafka's internal ones; its existence is checked when it
    is needed."""
    name = "errors.deadletterqueue.topic.name"
    for value in ("", "dlq.orders", "a topic that cannot be", "_one"):
        assert stored(errors_deadletterqueue_topic_name=value) == {name: value}
    error = refused(name, "__share_group_state")
    assert error.code is ErrorCode.invalid_config
    assert (
        error.message
        == f"Invalid value __share_group_state for configuration {name}: it must not begin with __"
    )
    for prefix in ("errors.deadletterqueue.copy.record", "kbroker.errors.deadletterqueue.keep.headers"):
        refused(f"{prefix}.enable", "yes")
    config = GroupConfig({name: "dlq.orders", "errors.deadletterqueue.copy.record.enable": "true"}, DEFAULTS)
    assert (config[name], config["errors.deadletterqueue.copy.record.enable"]) == ("dlq.orders", True)
    config = GroupConfig({}, DEFAULTS)
    assert [config[each] for each in GROUP_CONFIGS if "deadletterqueue" in each] == ["", False, False, False]


DURATIONS_MS = {
    "PT0S": 0,
    "P1D": 86_400_000,
    "P1DT1H1M1.001S": 90_061_001,
    "PT1H": 3_600_000,
    "pt1h": 3_600_000,
    "PT36H": 129_600_000,
    "PT0.5S": 500,
    "PT0,25S": 250,
    "PT1.S": 1000,
    "PT0.0009S": 0,
    "+PT1M": 60_000,
    "-PT-1M": 60_000,
    "PT-1H+70M": 600_000,
    "P-1DT25H": 3_600_000,
    "P106751991167D": 106_751_991_167 * 86_400_000,
}
NOT_DURATIONS = (
    "",
    "P",
    "PT",
    "P1DT",
    "1D",
    "P1",
    "PT1",
    "P1M",
    "P1Y",
    "P1W",
    "P1Y1D",
    "PT1M1H",
    "P1.5D",
    "PT1.5H",
    "PT1.1234567890S",
    "PT.5S",
    " PT1S",
    "PT1S\n",
    "PT\u0661S",
    "-PT1S",
    "PT-1S",
    "P-1D",
    "PT-0.5S",
    "P106751991168D",
    "P" + "9" * 100 + "D",
)


@pytest.mark.parametrize(("text", "duration_ms"), DURATIONS_MS.items())
def test_durations(text: str, duration_ms: int) -> None:  # CFG-18, CFG-30
    assert reset_duration_ms(f"by_duration:{text}") == duration_ms
    assert stored(share_auto_offset_reset=f"by_duration:{text}") == {RESET: f"by_duration:{text}"}


@pytest.mark.parametrize("text", NOT_DURATIONS)
def test_not_durations(text: str) -> None:  # CFG-18, CFG-30
    with pytest.raises(ValueError, match="Invalid value"):
        reset_duration_ms(f"by_duration:{text}")


@pytest.mark.parametrize(
    "text", ["", "none", "LATEST", "by_duration", "By_Duration:PT1S", "PT1S", "by_duration: PT1S"]
)
def test_reset_policies_that_are_none(text: str) -> None:  # CFG-18, CFG-29
    refused(RESET, text)


@given(
    st.integers(0, 10_000), st.integers(0, 100), st.integers(0, 100), st.integers(0, 100), st.integers(0, 999)
)
def test_durations_add_up(days: int, hours: int, minutes: int, seconds: int, millis: int) -> None:
    expected = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + millis
    assert reset_duration_ms(f"by_duration:P{days}DT{hours}H{minutes}M{seconds}.{millis:03}S") == expected


def test_described_sources() -> None:  # CFG-37
    broker = BrokerConfig.load(["group.share.record.lock.duration.ms=20000"])
    rows = {row.name: row for row in describe(Scope.GROUP, {"share.delivery.count.limit": "7"}, broker)}
    assert list(rows) == sorted(name for name, each in GROUP_CONFIGS.items() if each.default is not None)
    assert (rows["share.delivery.count.limit"].value, rows["share.delivery.count.limit"].source) == (
        "7",
        Source.GROUP,
    )
    locks = rows["share.record.lock.duration.ms"]
    assert (locks.value, locks.source) == ("20000", Source.STATIC_BROKER)
    assert rows["share.session.timeout.ms"].synonyms == (
        Synonym("group.share.session.timeout.ms", "45000", Source.DEFAULT),
    )
    assert rows["share.session.timeout.ms"].is_default
    assert not any(row.read_only for row in rows.values())
