"""`kbroker share-groups` and `kbroker groups` against a real broker: describing share groups, and
deleting them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from kbroker.cli.exits import OK, REFUSED
from kbroker.testing.broker import RunningBroker, open_test_broker
from tests.cli.conftest import Command
from tests.cli.consumer_groups import member
from tests.cli.test_produce_and_consume import share_consumer


@pytest.fixture
def one_log(command: Command, topic: str, tmp_path: Path) -> str:
    """A topic with ten records in one partition of three."""
    (tmp_path / "lines").write_text("".join(f"value-{n}\n" for n in range(10)))
    assert command("produce", topic, tmp_path / "lines", "--partition", "1").code == OK
    return topic


def used(command: Command, topic: str, group: str, count: int = 4) -> str:
    """A group without members that has finished so many records of the topic."""
    assert len(command("share-consume", topic, "-g", group, "-n", str(count)).lines) == count
    return group


def test_offsets_and_lag(command: Command, one_log: str) -> None:
    """The saved start offset may lag behind the finished records; the displayed lag does not."""
    used(command, one_log, "half-way")
    lines = [line.split() for line in command("share-groups", "describe", "half-way").lines]
    assert lines[0] == ["GROUP", "TOPIC", "PARTITION", "START-OFFSET", "LAG"]
    (start,) = [row[3] for row in lines if row[:3] == ["half-way", one_log, "1"]]
    assert ["half-way", one_log, "1", start, "6"] in lines
    assert 0 <= int(start) <= 4
    verbose = [
        line.split()
        for line in command("share-groups", "describe", "half-way", "--offsets", "--verbose").lines
    ]
    assert verbose[0] == ["GROUP", "TOPIC", "PARTITION", "LEADER-EPOCH", "START-OFFSET", "LAG"]
    assert ["half-way", one_log, "1", "0", start, "6"] in verbose
    (group,) = command("share-groups", "describe", "half-way", "--json").json
    assert (group["group"], group["state"]) == ("half-way", "Empty")
    row = {
        "topic": one_log,
        "partition": 1,
        "start_offset": int(start),
        "leader_epoch": 0,
        "lag": 6,
        "error": None,
    }
    assert row in group["offsets"]
    used(command, one_log, "half-way", 2)
    (later,) = command("share-groups", "describe", "half-way", "--json").json
    (found,) = [row for row in later["offsets"] if row["partition"] == 1]
    assert found["lag"] == 4
    assert 4 <= found["start_offset"] <= 6


def test_states(command: Command, one_log: str, broker: RunningBroker) -> None:
    used(command, one_log, "resting", 1)
    lines = command("share-groups", "describe", "resting", "--state").lines
    assert lines[0].split() == ["GROUP", "COORDINATOR", "(ID)", "STATE", "#MEMBERS"]
    assert lines[1].split() == ["resting", broker.bootstrap, "(1)", "Empty", "0"]
    verbose = command("share-groups", "describe", "resting", "--state", "--verbose").lines
    assert verbose[0].split()[-4:] == ["STATE", "GROUP-EPOCH", "ASSIGNMENT-EPOCH", "#MEMBERS"]
    (group,) = command("share-groups", "describe", "resting", "--state", "--json").json
    assert (group["group"], group["assignor"], group["member_count"]) == ("resting", "simple", 0)
    assert f"{group['coordinator']['host']}:{group['coordinator']['port']}" == broker.bootstrap


def test_members_with_and_without_their_epochs(command: Command, one_log: str, broker: RunningBroker) -> None:
    columns = ["GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "ASSIGNMENT"]
    with share_consumer(broker, one_log, "busy") as process:
        assert process.stdout is not None
        process.stdout.readline()
        plain = [line.split() for line in command("share-groups", "describe", "busy", "--members").lines]
        verbose = [
            line.split()
            for line in command("share-groups", "describe", "busy", "--members", "--verbose").lines
        ]
        (group,) = command("share-groups", "describe", "busy", "--members", "--json").json
        process.terminate()
    assert plain[0] == columns
    assert (plain[1][0], plain[1][-2:]) == ("busy", ["3", f"{one_log}:0,1,2"])
    assert verbose[0] == [*columns[:-1], "MEMBER-EPOCH", "ASSIGNMENT"]
    assert verbose[1][-2] == str(group["members"][0]["member_epoch"])


def test_a_group_without_members_or_offsets_says_so(command: Command, one_log: str) -> None:
    used(command, one_log, "left", 1)
    assert command("share-groups", "describe", "left", "--members") == (
        OK,
        "",
        "kbroker: share group left has no active members\n",
    )


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_consumer_group_leads_to_the_command_for_it(
    command: Command, one_log: str, broker: RunningBroker, protocol: str
) -> None:
    name = f"it's {one_log}"
    wrong = f"group {name} is a consumer group; use `kbroker groups %s {shlex.quote(name)}`\n"
    reset = ("share-groups", "reset-offsets", name, "--topic", one_log, "--to-latest", "--execute")
    with member(broker, name, one_log, protocol):
        for view in ("--offsets", "--members", "--state"):
            assert command("share-groups", "describe", name, view) == (
                REFUSED,
                "",
                "kbroker: " + wrong % "describe",
            )
        assert command(*reset) == (REFUSED, "", "kbroker: " + wrong % "reset-offsets")
        ran = command("share-groups", "delete-offsets", name, "--topic", one_log)
        assert ran == (REFUSED, "", "kbroker: " + wrong % "delete-offsets")
        ran = command("share-groups", "delete", name)
        why = f"it is a consumer group; use `kbroker groups delete {shlex.quote(name)}`"
        assert ran == (REFUSED, "", f"kbroker: share group {name} could not be deleted: {why}\n")
        ran = command("share-consume", one_log, "--group", name)
        why = (
            "is a consumer group, and this command is for share groups; `kbroker consume --group` is for "
            "those"
        )
        assert ran == (REFUSED, "", f"kbroker: group {name} {why}\n")
        assert name in [row["group"] for row in command("groups", "list", "--json").json]
    assert command("groups", "delete", name).code == OK


def test_describing_goes_on_after_a_group_that_is_missing(command: Command, one_log: str) -> None:
    used(command, one_log, "present", 1)
    for view in ("--offsets", "--members", "--state"):
        described = command("share-groups", "describe", "absent", "present", view, "--json")
        assert (described.code, [group["group"] for group in described.json]) == (REFUSED, ["present"])
        assert described.err == "kbroker: Group absent not found.\n"


def test_all_groups(command: Command, one_log: str) -> None:
    used(command, one_log, "first", 1)
    used(command, one_log, "second", 1)
    named = [group["group"] for group in command("share-groups", "describe", "--all-groups", "--json").json]
    assert {"first", "second"} <= set(named)
    assert named == sorted(named)


def test_lists_by_state_and_type(command: Command, one_log: str, broker: RunningBroker) -> None:
    used(command, one_log, "lazy", 1)
    with share_consumer(broker, one_log, "eager") as process:
        assert process.stdout is not None
        process.stdout.readline()
        stable = [line.split() for line in command("share-groups", "list", "--state", "stable").lines]
        every = {
            each["group"]: each["state"] for each in command("share-groups", "list", "--state", "--json").json
        }
        process.terminate()
    assert stable[0] == ["GROUP", "STATE"]
    assert ["eager", "Stable"] in stable[1:]
    assert {state for _, state in stable[1:]} == {"Stable"}
    assert (every["lazy"], every["eager"]) == ("Empty", "Stable")
    assert command("share-groups", "list", "--state", "Dead").lines == ["GROUP  STATE"]
    assert ["lazy", "share", "share"] in [line.split() for line in command("groups", "list").lines]
    row = {"group": "lazy", "type": "share", "protocol": "share", "state": "Empty"}
    for chosen in (
        ["--share"],
        ["--group-type", "SHARE"],
        ["--protocol", "share"],
        ["--group-type", "share", "--protocol", "share"],
    ):
        assert row in command("groups", "list", *chosen, "--json").json
    assert command("groups", "list", "--group-type", "consumer").lines == ["GROUP  TYPE  PROTOCOL"]
    assert command("groups", "list", "--protocol", "consumer", "--json").json == []


def test_deleting_groups(command: Command, one_log: str) -> None:
    for name in ("one", "two"):
        used(command, one_log, name, 1)
    done = command("share-groups", "delete", "one", "two", "one")
    assert done == (OK, "Deletion of requested share groups ('one', 'two') was successful.\n", "")
    assert not {"one", "two"} & set(command("share-groups", "list").lines)
    assert len(command("share-consume", one_log, "-g", "one", "-n", "10").lines) == 10


def test_a_group_in_use_is_not_deleted_and_the_others_are(
    command: Command, one_log: str, broker: RunningBroker
) -> None:
    used(command, one_log, "idle", 1)
    used(command, one_log, "idle-too", 1)
    why = {"used": "it has members; stop them first", "none": "there is no share group of this name"}
    with share_consumer(broker, one_log, "used") as process:
        assert process.stdout is not None
        process.stdout.readline()
        ended = command("share-groups", "delete", "used", "idle", "none")
        as_json = command("share-groups", "delete", "used", "idle-too", "--json")
        process.terminate()
    assert (ended.code, ended.out) == (REFUSED, "These share groups were deleted successfully: 'idle'\n")
    assert ended.err.splitlines() == [
        f"kbroker: share group {name} could not be deleted: {why[name]}" for name in ("used", "none")
    ]
    rows = [
        {"group": "used", "deleted": False, "error": why["used"]},
        {"group": "idle-too", "deleted": True, "error": None},
    ]
    assert (as_json.code, as_json.json) == (REFUSED, rows)


def test_deleting_offsets(command: Command, one_log: str) -> None:
    used(command, one_log, "forgetful")
    ended = command(
        "share-groups", "delete-offsets", "forgetful", "--topic", one_log, "--topic", "never-seen"
    )
    assert ended.code == REFUSED
    assert ended.lines[0].split() == ["TOPIC", "STATUS"]
    assert [line.split(maxsplit=1) for line in ended.lines[1:2]] == [[one_log, "Successful"]]
    assert ended.lines[2].startswith("never-seen")
    assert "Error: " in ended.lines[2]
    assert ended.err == "kbroker: offsets of 1 of 2 topics could not be deleted\n"
    assert (
        command("share-groups", "describe", "forgetful").err
        == "kbroker: share group forgetful has no offset information\n"
    )
    assert len(command("share-consume", one_log, "-g", "forgetful", "-n", "10").lines) == 10
    assert command("share-groups", "delete-offsets", "forgetful", "--topic", one_log, "--json").json == [
        {"topic": one_log, "deleted": True, "error": None}
    ]


def test_offsets_of_a_group_that_is_in_use_or_missing_are_not_deleted(
    command: Command, one_log: str, broker: RunningBroker
) -> None:
    with share_consumer(broker, one_log, "at-work") as process:
        assert process.stdout is not None
        process.stdout.readline()
        in_use = command("share-groups", "delete-offsets", "at-work", "--topic", one_log)
        process.terminate()
    missing = command("share-groups", "delete-offsets", "nobody", "--topic", one_log)
    for refused in (in_use, missing):
        assert (refused.code, refused.out, refused.err.count("\n")) == (REFUSED, "", 1)
        assert refused.err.startswith("kbroker: ")


def test_a_full_share_group_is_refused_in_one_line(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library gives up, prints a line of its own and raises."""
    with open_test_broker(config={"group.share.max.size": "1"}) as broker:
        monkeypatch.setenv("KBROKER_BOOTSTRAP", broker.bootstrap)
        broker.create_topic("orders")
        with broker.connect() as connection:
            join = {
                "group_id": "g",
                "member_id": "M1",
                "member_epoch": 0,
                "rack_id": None,
                "subscribed_topic_names": ["orders"],
            }
            connection.call("share_group_heartbeat", 1, **join)
            ran = command("share-consume", "orders", "-g", "g", "--timeout-ms", "20000")
    assert (ran.code, ran.out, ran.err.count("\n")) == (REFUSED, "", 1)
    assert "maximum size" in ran.err
