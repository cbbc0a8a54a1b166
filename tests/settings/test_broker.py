"""The broker's settings from file and command line: each at its bounds and beyond, and the checks
between them."""

from __future__ import annotations

import pytest

from kbroker.errors import OperatorError
from kbroker.settings.altering import BrokerConfig
from kbroker.settings.broker import BROKER_CONFIGS
from kbroker.settings.broker_groups import GROUP_CONSUMER_TRIPLES
from kbroker.settings.broker_share_groups import GROUP_SHARE_TRIPLES
from kbroker.settings.definition import INT_MAX, LONG_MAX, ConfigDef, ConfigType, to_text

WHOLE = (ConfigType.INT, ConfigType.LONG, ConfigType.SHORT)
INTEGERS = [each for each in BROKER_CONFIGS.values() if each.type in WHOLE]
TRIPLES = [
    *(f"share.{{}}{triple}" for triple in GROUP_SHARE_TRIPLES),
    *(f"consumer.{{}}{triple}" for triple in GROUP_CONSUMER_TRIPLES),
]
BOUNDS = [f"group.{triple.format(bound)}" for bound in ("min.", "max.") for triple in TRIPLES]
_LEAST = ("group.share.min.", "group.consumer.min.")
WIDEST = {
    # Settings that give the others their whole range, as far as possible.
    **{name: str(BROKER_CONFIGS[name].minimum) for name in BOUNDS if name.startswith(_LEAST)},
    **{name: str(BROKER_CONFIGS[name].maximum or INT_MAX) for name in BOUNDS if not name.startswith(_LEAST)},
    "group.share.session.timeout.ms": str(INT_MAX),
    "group.share.heartbeat.interval.ms": "1",
    "group.consumer.session.timeout.ms": str(INT_MAX),
    "group.consumer.heartbeat.interval.ms": "1",
    "group.share.max.share.sessions": str(INT_MAX),
    "group.share.max.size": "1",
}
STRINGS = {
    "sasl.oauthbearer.jwks.endpoint.url": ("https://issuer.example.com/keys", "file:///etc/keys.json"),
    "super.users": ("", "User:alice;User:bob"),
}
PASSWORDS = {
    "sasl.jaas.config": ("", 'org.apache.kafka.common.security.plain.PlainLoginModule required user_a="b c";')
}
NEEDS_AN_AUTHORIZER = {
    name: {"authorizer.class.name": "acl"} for name in ("super.users", "allow.everyone.if.no.acl.found")
}
LISTS = {
    "log.cleanup.policy": ("", "delete", "compact, delete"),
    "max.connections.per.ip.overrides": ("", "10.0.0.1:5, [::1]:7"),
    "sasl.enabled.mechanisms": ("", "PLAIN, SCRAM-SHA-256"),
    "ssl.enabled.protocols": ("TLSv1.3", "TLSv1.2, TLSv1.3"),
}
REACHABLE = {
    # Settings whose check against another one is always narrower than their bounds.
    **{
        f"group.{kind}session.timeout.ms": (2, INT_MAX)
        for kind in ("share.", "share.max.", "consumer.", "consumer.max.")
    },
    **{
        f"group.{kind}heartbeat.interval.ms": (1, INT_MAX - 1)
        for kind in ("share.", "share.min.", "consumer.", "consumer.min.")
    },
    "log.retention.ms": (-1, LONG_MAX),
    "log.retention.minutes": (-1, INT_MAX),
    "log.retention.hours": (-1, INT_MAX),
    **{each.name: (int(each.only[0]),) * 2 for each in INTEGERS if each.only},
}


def limits(each: ConfigDef) -> tuple[int, int]:
    unbounded = LONG_MAX if each.type is ConfigType.LONG else INT_MAX
    least = -unbounded - 1 if each.minimum is None else int(each.minimum)
    return least, unbounded if each.maximum is None else int(each.maximum)


def beside(name: str, value: int) -> dict[str, str]:
    """Settings that allow `name` to be `value`: the widest values, and for a bound a default within
    it."""
    settings = {other: text for other, text in WIDEST.items() if other != name}
    if name in BOUNDS:
        default = name.replace(".min.", ".", 1) if name.startswith(_LEAST) else name.replace(".max.", ".", 1)
        present = int(settings.get(default) or BROKER_CONFIGS[default].default or 0)
        settings[default] = str(max(present, value) if name.startswith(_LEAST) else min(present, value))
    return settings


def test_defaults_are_valid_together() -> None:
    config = BrokerConfig.load()
    for name, each in BROKER_CONFIGS.items():
        assert config[name] == each.default_value()


@pytest.mark.parametrize("each", INTEGERS, ids=lambda each: each.name)
def test_integers_at_their_bounds(each: ConfigDef) -> None:
    for value in REACHABLE.get(each.name, limits(each)):
        lines = [f"{name}={text}" for name, text in beside(each.name, value).items()]
        assert BrokerConfig.load([*lines, f" {each.name} = {value} "])[each.name] == value
        assert BrokerConfig.load(lines, {each.name: str(value)})[each.name] == value


@pytest.mark.parametrize("each", INTEGERS, ids=lambda each: each.name)
def test_integers_beyond_their_bounds(each: ConfigDef) -> None:
    least, most = limits(each)
    for value in (str(least - 1), str(most + 1), "", "ten", "1.5", "1_000", "0x10", "9" * 5000, "\u0663"):
        with pytest.raises(OperatorError, match=r"^configuration file, line 2: Invalid value"):
            BrokerConfig.load(["# a comment", f"{each.name}={value}"])
        with pytest.raises(OperatorError, match=r"^--config: Invalid value"):
            BrokerConfig.load((), {each.name: value})


@pytest.mark.parametrize(
    "each", [each for each in BROKER_CONFIGS.values() if each not in INTEGERS], ids=lambda each: each.name
)
def test_other_types(each: ConfigDef) -> None:
    good = {
        ConfigType.BOOLEAN: each.only or ("true", "FALSE", " True "),
        ConfigType.STRING: each.choices or STRINGS.get(each.name, ("anything",)),
        ConfigType.PASSWORD: PASSWORDS.get(each.name, ("anything",)),
        ConfigType.LIST: each.only or LISTS.get(each.name, ("a, b",)),
        ConfigType.DOUBLE: (str(each.minimum), str(each.maximum or 1e300)),
    }[each.type]
    beside = NEEDS_AN_AUTHORIZER.get(each.name, {})
    for value in good:
        lines = [f"{name}={text}" for name, text in {**beside, each.name: value}.items()]
        assert BrokerConfig.load(lines)[each.name] == each.parse(value)
        assert BrokerConfig.load((), {**beside, each.name: value})[each.name] == each.parse(value)
    if each.type is ConfigType.BOOLEAN or each.choices or each.only:
        for bad in ("", "yes", "createtime", "simple,other"):
            with pytest.raises(OperatorError, match="Invalid value"):
                BrokerConfig.load([f"{each.name}={bad}"])
    if each.type is ConfigType.DOUBLE:
        for bad in ("", "half", "nan", "inf", "-1"):
            with pytest.raises(OperatorError, match="Invalid value"):
                BrokerConfig.load([f"{each.name}={bad}"])


def test_the_tests_know_every_type() -> None:
    assert {each.type for each in BROKER_CONFIGS.values()} == {*ConfigType} - {ConfigType.UNKNOWN}


def test_file_syntax() -> None:
    lines = [
        "",
        "   ",
        "# num.partitions=7",
        "! num.partitions=8",
        "num.partitions=2",
        "  num.partitions = 3  ",
        "\n",
    ]
    assert BrokerConfig.load(lines)["num.partitions"] == 3


def test_command_line_wins() -> None:
    assert BrokerConfig.load(["num.partitions=2"], {"num.partitions": "5"})["num.partitions"] == 5


def test_a_line_without_a_name_is_refused() -> None:
    with pytest.raises(OperatorError, match=r"^configuration file, line 2: this line has no name; write"):
        BrokerConfig.load(["# first", "= num.partitions"])


def test_unknown_names_are_refused_with_the_closest() -> None:
    with pytest.raises(
        OperatorError, match=r"line 1: unknown setting 'num.partition'; did you mean num.partitions\?$"
    ):
        BrokerConfig.load(["num.partition=3"])
    with pytest.raises(OperatorError, match=r"^--config: log.dirs: use --data-dir"):
        BrokerConfig.load((), {"log.dirs": "/data"})
    for unlike in ("xyzzy", "num.parts"):
        with pytest.raises(
            OperatorError, match=rf"unknown setting '{unlike}'; `kbroker docs settings` lists all"
        ):
            BrokerConfig.load([f"{unlike}=1"])


CONTRADICTIONS = [
    (
        {"group.share.min.record.lock.duration.ms": "30000", "group.share.record.lock.duration.ms": "20000"},
        "min.record.lock.duration.ms",
    ),
    ({"group.share.record.lock.duration.ms": "60001"}, "group.share.max.record.lock.duration.ms"),
    (
        {"group.share.delivery.count.limit": "4", "group.share.min.delivery.count.limit": "5"},
        "group.share.min.delivery.count.limit",
    ),
    (
        {"group.share.delivery.count.limit": "9", "group.share.max.delivery.count.limit": "8"},
        "group.share.max.delivery.count.limit",
    ),
    ({"group.share.partition.max.record.locks": "4001"}, "group.share.max.partition.max.record.locks"),
    ({"group.share.session.timeout.ms": "44999"}, "group.share.min.session.timeout.ms"),
    ({"group.share.heartbeat.interval.ms": "4999"}, "group.share.min.heartbeat.interval.ms"),
    ({"group.share.assignment.interval.ms": "15001"}, "group.share.max.assignment.interval.ms"),
    (
        {"group.share.min.session.timeout.ms": "60001", "group.share.session.timeout.ms": "60001"},
        "group.share.max.session.timeout.ms",
    ),
    (
        {
            "group.share.max.heartbeat.interval.ms": "45000",
            "group.share.heartbeat.interval.ms": "45000",
        },
        "group.share.session.timeout.ms (45000) must be greater than group.share.heartbeat.interval.ms "
        "(45000)",
    ),
    ({"group.share.max.share.sessions": "199"}, "group.share.max.size"),
    ({"node.id": "1", "broker.id": "2"}, "broker.id (2) is another name of node.id (1)"),
    ({"log.retention.ms": "0"}, "log.retention.ms must be unlimited (-1) or, equal or greater than 1"),
    ({"log.retention.hours": "-2"}, "log.retention.hours must be unlimited (-1) or, equal or greater than 1"),
]


@pytest.mark.parametrize(("settings", "named"), CONTRADICTIONS)
def test_contradictions_stop_the_start(settings: dict[str, str], named: str) -> None:  # CFG-10
    with pytest.raises(OperatorError, match="the configuration contradicts itself: ") as caught:
        BrokerConfig.load([f"{name}={value}" for name, value in settings.items()])
    assert named in str(caught.value)


def test_altered_settings_win_over_static_ones_and_bad_ones_change_nothing() -> None:
    name = "group.share.assignment.interval.ms"
    config = BrokerConfig.load((), {name: "10"})
    config.set_dynamic({name: "20"}, {})
    assert config[name] == 20
    config.set_dynamic({name: "20"}, {name: "30"})
    assert config[name] == 30
    with pytest.raises(ValueError, match=r"group\.share\.max\.assignment\.interval\.ms"):
        config.set_dynamic({}, {name: "15001"})
    assert config[name] == 30
    config.set_dynamic({}, {})
    assert config[name] == 10


@pytest.mark.parametrize("each", BROKER_CONFIGS.values(), ids=lambda each: each.name)
def test_defaults_are_written_as_they_are_stored(each: ConfigDef) -> None:
    value = each.default_value()
    assert (None if value is None else to_text(value)) == each.default


def test_num_partitions_is_bounded() -> None:
    """Topics that are created automatically bypass the limit of CreateTopics."""
    assert BrokerConfig.load((), {"num.partitions": "10000"})["num.partitions"] == 10_000
    with pytest.raises(OperatorError, match="10000"):
        BrokerConfig.load((), {"num.partitions": "10001"})


def test_the_migration_policy_in_any_letter_case() -> None:
    assert (
        BrokerConfig.load(["group.consumer.migration.policy=UPGRADE"])["group.consumer.migration.policy"]
        == "UPGRADE"
    )
    with pytest.raises(
        OperatorError, match="String must be one of: disabled, downgrade, upgrade, bidirectional"
    ):
        BrokerConfig.load(["group.consumer.migration.policy=sideways"])
