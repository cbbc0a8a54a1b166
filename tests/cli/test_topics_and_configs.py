"""`kbroker topics` and `kbroker configs` against a real broker."""

from __future__ import annotations

import pytest

from kbroker.cli.exits import OK, REFUSED
from kbroker.testing.broker import RunningBroker
from tests.cli.conftest import Command


def test_a_topic_from_creation_to_deletion(command: Command) -> None:
    assert command("topics", "create", "life", "-p", "2", "--config", "retention.ms=1000000") == (
        OK,
        "created topic life\n",
        "",
    )
    assert "life" in command("topics", "list").lines
    assert "life" in command("topics", "list", "--json").json
    (described,) = command("topics", "describe", "life", "--json").json
    assert described["partitions"] == [{"partition": p, "start_offset": 0, "end_offset": 0} for p in (0, 1)]
    assert described["configs"] == {"retention.ms": "1000000"}
    assert command("topics", "delete", "life") == (OK, "deleted topic life\n", "")
    assert "life" not in command("topics", "list").lines


def test_deleting_topics_goes_on_after_one_that_is_missing(command: Command) -> None:
    command("topics", "create", "short-lived")
    ended = command("topics", "delete", "nowhere", "short-lived")
    assert ended == (REFUSED, "deleted topic short-lived\n", "kbroker: there is no topic nowhere\n")
    again = command("topics", "delete", "nowhere", "short-lived")
    assert again == (
        REFUSED,
        "",
        "kbroker: there is no topic nowhere\nkbroker: there is no topic short-lived\n",
    )


def test_describing_goes_on_after_a_topic_that_is_missing(command: Command, topic: str) -> None:
    described = command("topics", "describe", "nowhere", topic, "--json")
    assert (described.code, described.err) == (REFUSED, "kbroker: there is no topic nowhere\n")
    assert [each["name"] for each in described.json] == [topic]


@pytest.mark.parametrize(
    "arguments",
    [["create"], ["describe"], ["alter", "-p", "3"], ["delete-records", "--to-end", "--yes"]],
    ids=lambda arguments: str(arguments[0]),
)
def test_a_name_that_no_topic_may_have(command: Command, arguments: list[str]) -> None:
    sentence = (
        "Topic name is invalid: 'nosüch' is not 1 to 249 characters out of ASCII alphanumerics, "
        "'.', '_' and '-'"
    )
    assert command("topics", *arguments, "nosüch") == (REFUSED, "", f"kbroker: {sentence}\n")


def test_describe_prints_a_table(command: Command, topic: str) -> None:
    lines = command("topics", "describe", topic).lines
    assert lines[0].split() == ["TOPIC", "PARTITION", "START-OFFSET", "END-OFFSET", "OFFSETS"]
    assert [line.split() for line in lines[1:]] == [
        [topic, str(partition), "0", "0", "0"] for partition in range(3)
    ]


def test_creating_twice(command: Command, topic: str) -> None:
    refused = command("topics", "create", topic)
    assert refused.code == REFUSED
    assert refused.err.startswith("kbroker: ")
    assert "already exists" in refused.err
    assert command("topics", "create", topic, "--if-not-exists") == (
        OK,
        f"topic {topic} exists already\n",
        "",
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("topics", "describe", "no-such-topic"),
        ("topics", "delete", "no-such-topic"),
        ("topics", "create", "no/such/name"),
        ("topics", "create", "no-such-topic", "--config", "no.such.config=1"),
        ("topics", "create", "no-such-topic", "--config", "retention.ms=soon"),
        ("configs", "describe", "--topic", "no-such-topic"),
        ("configs", "set", "--topic", "no-such-topic", "retention.ms=1"),
        ("configs", "set", "--group", "g", "share.auto.offset.reset=sometime"),
        ("configs", "set", "--group", "g", "share.delivery.count.limit=1"),
        ("configs", "set", "--group", "g", "errors.deadletterqueue.topic.name=__dead"),
        ("configs", "delete", "--group", "g", "no.such.config"),
        ("consume", "no-such-topic"),
        ("share-consume", "no-such-topic", "-g", "g"),
        ("share-groups", "describe", "no-such-group"),
    ],
    ids=" ".join,
)
def test_refusals_are_one_line(command: Command, arguments: tuple[str, ...]) -> None:
    refused = command(*arguments)
    assert refused.code == REFUSED
    assert refused.out == ""
    assert refused.err.startswith("kbroker: ")
    assert refused.err.count("\n") == 1
    assert command("topics", "delete", "no-such-topic", "--if-exists").code == OK


def test_topic_configs(command: Command, topic: str) -> None:
    assert (
        command("configs", "describe", "--topic", topic).out
        == "all configs have their default values (--all shows them)\n"
    )
    assert (
        command("configs", "set", "--topic", topic, "retention.ms=5000", "segment.bytes=2000000").code == OK
    )
    shown = {
        entry["name"]: (entry["value"], entry["source"])
        for entry in command("configs", "describe", "--topic", topic, "--json").json
    }
    assert shown == {"retention.ms": ("5000", "topic"), "segment.bytes": ("2000000", "topic")}
    assert command("configs", "delete", "--topic", topic, "retention.ms").code == OK
    rows = [line.split() for line in command("configs", "describe", "--topic", topic).lines]
    assert rows == [
        ["NAME", "VALUE", "SOURCE", "DEFAULT"],
        ["segment.bytes", "2000000", "topic", "1073741824"],
    ]


def test_group_configs_need_no_group(command: Command) -> None:
    assert command("configs", "set", "--group", "later", "share.auto.offset.reset=earliest").code == OK
    (entry,) = command("configs", "describe", "--group", "later", "--json").json
    names_and_source = {"name": "share.auto.offset.reset", "source": "group", "read_only": False}
    assert entry == {**names_and_source, "value": "earliest", "default": "latest"}


def test_what_a_topic_has_from_the_broker(command: Command, topic: str) -> None:
    command("configs", "set", "--broker", "", "log.retention.ms=7000000")
    assert (
        "retention.ms  7000000  dynamic cluster  7000000"
        in command("configs", "describe", "--topic", topic).lines
    )
    command("configs", "set", "--topic", topic, "retention.ms=5000")
    assert "retention.ms  5000   topic   7000000" in command("configs", "describe", "--topic", topic).lines
    command("configs", "delete", "--broker", "", "log.retention.ms")


def test_configs_of_a_group_with_sources_and_defaults(command: Command) -> None:
    """Including the names of dead letter settings."""
    values = {
        "errors.deadletterqueue.topic.name": "dlq.orders",
        "errors.deadletterqueue.copy.record.enable": "true",
    }
    assert (
        command(
            "configs", "set", "--group", "known", *(f"{name}={value}" for name, value in values.items())
        ).code
        == OK
    )
    assert {
        entry["name"]: entry["value"]
        for entry in command("configs", "describe", "--group", "known", "--json").json
    } == values
    shown = {
        entry["name"]: entry
        for entry in command("configs", "describe", "--group", "known", "--all", "--json").json
    }
    limit = shown["share.delivery.count.limit"]
    assert (limit["value"], limit["source"], limit["default"]) == ("5", "default", "5")
    assert shown["errors.deadletterqueue.copy.record.enable"]["default"] == "false"
    assert (
        command("configs", "delete", "--group", "known", *values).out
        == f"deleted {', '.join(values)} of group known\n"
    )
    assert (
        command("configs", "describe", "--group", "known").out
        == "all configs have their default values (--all shows them)\n"
    )


def test_configs_of_all_brokers(command: Command) -> None:
    assert (
        command("configs", "set", "--broker", "", "log.retention.ms=5000000").out
        == "set log.retention.ms of all brokers\n"
    )
    (entry,) = command("configs", "describe", "--broker", "", "--json").json
    assert (entry["name"], entry["value"], entry["source"]) == (
        "log.retention.ms",
        "5000000",
        "dynamic cluster",
    )
    assert (
        command("configs", "delete", "--broker", "", "log.retention.ms").out
        == "deleted log.retention.ms of all brokers\n"
    )
    again = command("configs", "delete", "--broker", "", "log.retention.ms")
    assert again == (REFUSED, "", "kbroker: log.retention.ms is not set for all brokers\n")


def test_deleting_configs_that_are_not_set(command: Command, topic: str) -> None:
    """Refused with the place where the value is set; all other named configs are kept."""
    retention = "log.retention.ms"

    def refused(*arguments: str) -> str:
        ended = command("configs", "delete", *arguments)
        assert (ended.code, ended.out) == (REFUSED, "")
        return ended.err

    assert refused("--broker", "1", retention) == f"kbroker: {retention} is not set on broker 1\n"
    command("configs", "set", "--broker", "", f"{retention}=7000000")
    from_all = f'but for all brokers: kbroker configs delete --broker "" {retention}\n'
    assert refused("--broker", "1", retention) == f"kbroker: {retention} is not set on broker 1, {from_all}"
    from_broker = f"is not set on topic {topic}: its value comes from the settings of the broker\n"
    assert refused("--topic", topic, "retention.ms") == f"kbroker: retention.ms {from_broker}"
    command("configs", "delete", "--broker", "", retention)
    assert refused("--topic", topic, "retention.ms") == f"kbroker: retention.ms is not set on topic {topic}\n"
    from_start = "is not set on broker 1: its value comes from the start of the broker\n"
    assert refused("--broker", "1", "group.initial.rebalance.delay.ms").endswith(from_start)
    command("configs", "set", "--group", "g", "share.session.timeout.ms=50000")
    not_set = "kbroker: share.delivery.count.limit is not set on group g\n"
    assert refused("--group", "g", "share.session.timeout.ms", "share.delivery.count.limit") == not_set
    assert command("configs", "delete", "--group", "g", "share.session.timeout.ms").code == OK


def test_broker_configs(command: Command, broker: RunningBroker) -> None:
    with broker.connect() as connection:
        cluster = connection.call(
            "describe_cluster", include_cluster_authorized_operations=False, include_fenced_brokers=False
        )
        node_id = str(cluster.brokers[0].broker_id)
    given = {
        entry["name"]: entry["value"]
        for entry in command("configs", "describe", "--broker", node_id, "--json").json
    }
    assert given.items() >= broker.config.items()
