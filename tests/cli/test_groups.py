"""`kbroker groups` against a real broker: describing consumer groups of both protocols, and
deleting them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kbroker.cli.exits import OK, REFUSED
from kbroker.client import group_admin
from kbroker.testing.broker import RunningBroker
from tests.cli.conftest import Command, Ran
from tests.cli.consumer_groups import ON_EACH_ENGINE, PROTOCOLS, commit, committed, consuming, member, until

pytestmark = ON_EACH_ENGINE
OFFSET_COLUMNS = [
    "GROUP",
    "TOPIC",
    "PARTITION",
    "CURRENT-OFFSET",
    "LOG-END-OFFSET",
    "LAG",
    "CONSUMER-ID",
    "HOST",
    "CLIENT-ID",
]


@pytest.fixture
def one_log(command: Command, topic: str, tmp_path: Path) -> str:
    """A topic with ten records in one partition of three."""
    (tmp_path / "lines").write_text("".join(f"value-{n}\n" for n in range(10)))
    assert command("produce", topic, tmp_path / "lines", "--partition", "1").code == OK
    return topic


@pytest.fixture
def group(broker: RunningBroker, one_log: str) -> str:
    """A group without members that has read four of the ten records; named after the topic."""
    return commit(broker, one_log, {(one_log, 1): 4})


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def table(ran: Ran) -> list[list[str]]:
    assert ran.code == OK, ran
    return [line.split() for line in ran.lines]


def stable(command: Command, group: str) -> dict[str, Any]:
    """The members' view once the group has settled."""

    def found() -> dict[str, Any] | None:
        (described,) = command("groups", "describe", group, "--members", "--json").json
        return described if described["state"] == "Stable" else None

    return until(f"{group} is stable", found)


def test_offsets_and_lag_of_a_group_without_members(command: Command, one_log: str, group: str) -> None:
    plain = command("groups", "describe", group)
    assert table(plain) == [OFFSET_COLUMNS, [group, one_log, "1", "4", "10", "6", "-", "-", "-"]]
    assert plain.err == f"kbroker: consumer group {group} has no active members\n"
    verbose = table(command("groups", "describe", "--group", group, "--offsets", "--verbose"))
    assert verbose[0] == [*OFFSET_COLUMNS[:3], "LEADER-EPOCH", *OFFSET_COLUMNS[3:]]
    assert verbose[1] == [group, one_log, "1", "-", "4", "10", "6", "-", "-", "-"]
    (described,) = command("groups", "describe", group, "--json").json
    assert (described["group"], described["type"], described["state"]) == (group, "classic", "Empty")
    nobody = {"member_id": None, "client_host": None, "client_id": None}
    row = {
        "topic": one_log,
        "partition": 1,
        "leader_epoch": None,
        "current_offset": 4,
        "log_end_offset": 10,
        "lag": 6,
        "metadata": "",
    }
    assert described["offsets"] == [{**row, **nobody}]


def test_offsets_of_partitions_that_members_have(
    command: Command, broker: RunningBroker, one_log: str, group: str, protocol: str
) -> None:
    with member(broker, group, one_log, protocol, client_id="reader") as consumer:
        (who,) = stable(command, group)["members"]
        rows = table(command("groups", "describe", group))
        consumer.commit(
            asynchronous=False,
            offsets=[each for each in consumer.committed(consumer.assignment()) if each.partition == 1],
        )
    owner = [who["member_id"], who["client_host"], "reader"]
    assert rows[0] == OFFSET_COLUMNS
    assert rows[1:] == [
        [group, one_log, "0", "-", "0", "-", *owner],
        [group, one_log, "1", "4", "10", "6", *owner],
        [group, one_log, "2", "-", "0", "-", *owner],
    ]


def test_members_of_a_classic_group(
    command: Command, broker: RunningBroker, one_log: str, group: str
) -> None:
    with member(broker, group, one_log, client_id="reader"):
        (who,) = stable(command, group)["members"]
        plain = table(command("groups", "describe", group, "--members"))
        verbose = table(command("groups", "describe", group, "--members", "--verbose"))
    row = [group, who["member_id"], who["client_host"], "reader", "3"]
    columns = ["GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS"]
    assert plain == [columns, row]
    assert verbose[0] == [
        *columns,
        "CURRENT-EPOCH",
        "CURRENT-ASSIGNMENT",
        "TARGET-EPOCH",
        "TARGET-ASSIGNMENT",
    ]
    assert verbose[1] == [*row, "-", f"{one_log}:0,1,2", "-", "-"]
    assert (who["subscribed_topics"], who["assignment"], who["target_assignment"]) == (
        [one_log],
        {one_log: [0, 1, 2]},
        None,
    )


def test_members_of_a_consumer_group_with_their_epochs(
    command: Command, broker: RunningBroker, one_log: str, group: str
) -> None:
    with member(broker, group, one_log, "consumer", client_id="reader"):
        described = stable(command, group)
        verbose = table(command("groups", "describe", group, "--members", "--verbose"))
    (who,) = described["members"]
    epochs = [
        str(who["member_epoch"]),
        f"{one_log}:0,1,2",
        str(described["assignment_epoch"]),
        f"{one_log}:0,1,2",
    ]
    assert verbose[1] == [group, who["member_id"], who["client_host"], "reader", "3", *epochs]
    assert who["member_epoch"] == described["assignment_epoch"] > 0
    assert (described["type"], who["is_classic"], who["subscribed_topics"]) == ("consumer", False, [one_log])


def test_static_members_show_their_instance_id(
    command: Command, broker: RunningBroker, one_log: str, protocol: str
) -> None:
    group = f"{one_log}-static"
    with member(broker, group, one_log, protocol, group_instance_id="desk-1"):
        rows = table(command("groups", "describe", group, "--members"))
    assert rows[0] == ["GROUP", "CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "#PARTITIONS"]
    assert rows[1][2] == "desk-1"


def test_members_that_are_not_upgraded_yet(
    command: Command, broker: RunningBroker, one_log: str, group: str
) -> None:
    """A group of KIP-848 with a member of each protocol."""
    with consuming(broker, one_log, "-g", group, "--group-protocol", "consumer"):
        members = lambda: [  # noqa: E731
            each["members"] for each in command("groups", "describe", group, "--members", "--json").json
        ]
        until("the first member is there", lambda: any(members()) or None)
        with member(broker, group, one_log, partition_assignment_strategy="cooperative-sticky"):
            stable(command, group)
            rows = table(command("groups", "describe", group, "--members", "--verbose"))
    assert rows[0][-1] == "UPGRADED"
    assert sorted(row[-1] for row in rows[1:]) == ["false", "true"]


def test_states(command: Command, broker: RunningBroker, one_log: str, group: str) -> None:
    columns = ["GROUP", "COORDINATOR", "(ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS"]
    with broker.connect() as connection:
        node = str(group_admin.find_coordinators(connection, [group])[group].node_id)
    empty = table(command("groups", "describe", group, "--state"))
    assert empty == [columns, [group, broker.bootstrap, f"({node})", "-", "Empty", "0"]]
    with member(broker, group, one_log, partition_assignment_strategy="roundrobin"):
        stable(command, group)
        row = table(command("groups", "describe", group, "--state"))[1]
        verbose = table(command("groups", "describe", group, "--state", "--verbose"))
    assert row == [group, broker.bootstrap, f"({node})", "roundrobin", "Stable", "1"]
    assert verbose[0] == [*columns[:-1], "GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH", "#MEMBERS"]
    assert verbose[1][-4:] == ["Stable", "-", "-", "1"]


def test_the_state_of_a_consumer_group(command: Command, broker: RunningBroker, one_log: str) -> None:
    group = f"{one_log}-new"
    with member(broker, group, one_log, "consumer"):
        stable(command, group)
        verbose = table(command("groups", "describe", group, "--state", "--verbose"))[1]
        (described,) = command("groups", "describe", group, "--state", "--json").json
    epoch = str(described["group_epoch"])
    assert verbose[3:] == ["uniform", "Stable", epoch, epoch, "1"]
    assert (described["assignment_strategy"], described["member_count"]) == ("uniform", 1)
    assert f"{described['coordinator']['host']}:{described['coordinator']['port']}" == broker.bootstrap


def test_what_is_no_consumer_group_is_named_and_the_others_are_described(
    command: Command, one_log: str, group: str
) -> None:
    share = f"{one_log}-share"
    assert (
        command("share-groups", "reset-offsets", share, "--topic", one_log, "--to-latest", "--execute").code
        == OK
    )
    for view in ("--offsets", "--members", "--state"):
        ran = command("groups", "describe", "absent", group, "-g", share, view, "--json")
        assert (ran.code, [each["group"] for each in ran.json]) == (REFUSED, [group])
        assert ran.err.splitlines() == ["kbroker: Group absent not found.", wrong_type(share, "describe")]


def wrong_type(share: str, subcommand: str) -> str:
    return f"kbroker: group {share} is a share group; use `kbroker share-groups {subcommand} {share}`"


def test_all_groups_are_all_consumer_groups(
    command: Command, broker: RunningBroker, one_log: str, group: str
) -> None:
    commit(broker, f"{group}-other", {(one_log, 0): 0})
    share = f"{one_log}-share"
    assert (
        command("share-groups", "reset-offsets", share, "--topic", one_log, "--to-latest", "--execute").code
        == OK
    )
    named = [each["group"] for each in command("groups", "describe", "--all-groups", "--json").json]
    assert {group, f"{group}-other"} <= set(named)
    assert share not in named
    assert named == sorted(named)


def test_lists_by_state_and_type(command: Command, broker: RunningBroker, one_log: str, group: str) -> None:
    busy = f"{one_log}-busy"
    with member(broker, busy, one_log, "consumer"):
        stable(command, busy)
        in_order = table(command("groups", "list", "--consumer", "--state"))
        of_type = table(command("groups", "list", "--type", "Consumer,share", "--state", "stable"))
        rows = command("groups", "list", "--consumer", "--json").json
    assert in_order[0] == ["GROUP", "TYPE", "PROTOCOL", "STATE"]
    assert [busy, "consumer", "consumer", "Stable"] in in_order
    assert [busy, "consumer", "consumer", "Stable"] in of_type
    assert {row[-1] for row in of_type[1:]} == {"Stable"}
    assert group not in [row[0] for row in of_type]
    (resting,) = [row for row in rows if row["group"] == group]
    assert (resting["type"], resting["state"]) == ("classic", "Empty")


def test_deleting_groups(command: Command, broker: RunningBroker, one_log: str, group: str) -> None:
    other = commit(broker, f"{group}-other", {(one_log, 0): 0})
    done = command("groups", "delete", group, "--group", other, group)
    assert done == (OK, f"Deletion of requested consumer groups ('{group}', '{other}') was successful.\n", "")
    assert not {group, other} & {each["group"] for each in command("groups", "list", "--json").json}
    assert committed(broker, group) == {}


def test_what_cannot_be_deleted_is_named_and_the_others_are_deleted(
    command: Command, broker: RunningBroker, one_log: str, group: str, protocol: str
) -> None:
    share = f"{one_log}-share"
    assert (
        command("share-groups", "reset-offsets", share, "--topic", one_log, "--to-latest", "--execute").code
        == OK
    )
    why = {
        "used": "it has members; stop them first",
        share: f"it is a share group; use `kbroker share-groups delete {share}`",
        "none": "there is no consumer group of this name",
    }
    with member(broker, "used", one_log, protocol):
        ended = command("groups", "delete", "used", group, share, "none")
        as_json = command("groups", "delete", "used", "--json")
    assert (ended.code, ended.out) == (
        REFUSED,
        f"These consumer groups were deleted successfully: '{group}'\n",
    )
    assert sorted(ended.err.splitlines()) == sorted(
        f"kbroker: consumer group {name} could not be deleted: {why[name]}" for name in why
    )
    assert (as_json.code, as_json.json) == (
        REFUSED,
        [{"group": "used", "deleted": False, "error": why["used"]}],
    )
    assert share in command("share-groups", "list").lines


def test_deleting_offsets(command: Command, broker: RunningBroker, one_log: str, group: str) -> None:
    commit(broker, group, {(one_log, 0): 0, (one_log, 2): 0})
    ended = command("groups", "delete-offsets", group, "--topic", f"{one_log}:1,7", "--topic", "nowhere")
    assert ended.code == REFUSED
    assert [line.split(maxsplit=2) for line in ended.lines] == [
        ["TOPIC", "PARTITION", "STATUS"],
        ["nowhere", "-", "Error: there is no topic of this name"],
        [one_log, "1", "Successful"],
        [one_log, "7", "Error: unknown topic or partition"],
    ]
    assert ended.err == "kbroker: offsets of 2 of 3 partitions could not be deleted\n"
    assert committed(broker, group) == {(one_log, 0): 0, (one_log, 2): 0}
    rows = command("groups", "delete-offsets", "--group", group, "--topic", one_log, "--json").json
    assert rows == [
        {"topic": one_log, "partition": number, "deleted": True, "error": None} for number in range(3)
    ]
    assert committed(broker, group) == {}


def test_offsets_of_topics_that_members_read_are_not_deleted(
    command: Command, broker: RunningBroker, one_log: str, group: str, protocol: str
) -> None:
    with member(broker, group, one_log, protocol):
        in_use = command("groups", "delete-offsets", group, "--topic", f"{one_log}:1", "--json")
    why = "the group has members that are subscribed to the topic"
    assert (in_use.code, in_use.json) == (
        REFUSED,
        [{"topic": one_log, "partition": 1, "deleted": False, "error": why}],
    )
    assert committed(broker, group) == {(one_log, 1): 4}
    missing = command("groups", "delete-offsets", "nobody", "--topic", one_log)
    assert missing == (REFUSED, "", "kbroker: group nobody: there is no consumer group of this name\n")
    share = f"{one_log}-share"
    assert (
        command("share-groups", "reset-offsets", share, "--topic", one_log, "--to-latest", "--execute").code
        == OK
    )
    assert command("groups", "delete-offsets", share, "--topic", one_log) == (
        REFUSED,
        "",
        wrong_type(share, "delete-offsets") + "\n",
    )
