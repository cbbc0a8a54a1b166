"""`kbroker groups reset-offsets` against a real broker: where each target leads, what is refused,
and what a group reads afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kbroker.cli.exits import OK, REFUSED, USAGE
from kbroker.testing.broker import RunningBroker
from tests.cli.conftest import Command
from tests.cli.consumer_groups import ON_EACH_ENGINE, PROTOCOLS, commit, committed, member

pytestmark = ON_EACH_ENGINE
HOUR = timedelta(hours=1)


@pytest.fixture
def dated(broker: RunningBroker, topic: str) -> str:
    """A topic of three partitions with ten records in the first: the last is half an hour old, each
    one an hour older than the next."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    last = datetime.now(UTC) - HOUR / 2
    for number in range(10):
        when = last - (9 - number) * HOUR
        producer.produce(topic, f"value-{number}", partition=0, timestamp=int(when.timestamp() * 1000))
    assert producer.flush(30) == 0
    return topic


@pytest.fixture
def group(broker: RunningBroker, dated: str) -> str:
    """A group without members, named after the topic, that has read four records."""
    return commit(broker, dated, {(dated, 0): 4})


def hours_ago(hours: float) -> str:
    return (datetime.now(UTC) - hours * HOUR).isoformat(timespec="milliseconds")[:23]


TARGETS: Mapping[str, tuple[list[str], int]] = {
    "earliest": (["--to-earliest"], 0),
    "latest": (["--to-latest"], 10),
    "offset": (["--to-offset", "7"], 7),
    "current": (["--to-current"], 4),
    "forward": (["--shift-by", "2"], 6),
    "back": (["--shift-by", "-3"], 1),
    "duration": (["--by-duration", "PT3H"], 7),
    "long-duration": (["--by-duration", "P1DT2H3M4.5S"], 0),
}


@pytest.mark.parametrize(("target", "offset"), TARGETS.values(), ids=TARGETS)
def test_where_each_target_leads(
    command: Command, broker: RunningBroker, dated: str, group: str, target: list[str], offset: int
) -> None:
    where = ("groups", "reset-offsets", group, "--topic", f"{dated}:0", *target)
    planned = command(*where, "--dry-run")
    assert (planned.code, planned.err) == (OK, "")
    assert [line.split() for line in planned.lines] == [
        ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"],
        [group, dated, "0", str(offset)],
    ]
    default = command(*where)
    assert default == (OK, planned.out, "kbroker: nothing was changed; --execute changes the offsets\n")
    assert committed(broker, group) == {(dated, 0): 4}
    assert command(*where, "--execute") == (OK, planned.out, "")
    assert committed(broker, group) == {(dated, 0): offset}
    if offset < 10:
        assert command("consume", dated, "--group", group, "-n", "1").out == f"value-{offset}\n"


def test_to_a_time(command: Command, dated: str, group: str) -> None:
    where = ("groups", "reset-offsets", group, "--topic", f"{dated}:0", "--dry-run", "--json")
    assert command(*where, "--to-datetime", hours_ago(5)).json[0]["new_offset"] == 5
    after = command(*where, "--to-datetime", hours_ago(0))
    assert (after.code, after.json[0]["new_offset"]) == (OK, 10)
    assert after.err == f"kbroker: warning: {dated}-0 has no record at or after that time; using its end\n"


def test_all_partitions_or_some(command: Command, dated: str, group: str) -> None:
    def planned(*scope: str) -> dict[int, int]:
        rows = command("groups", "reset-offsets", group, *scope, "--to-latest", "--dry-run", "--json").json
        return {row["partition"]: row["new_offset"] for row in rows}

    assert planned("--topic", dated) == {0: 10, 1: 0, 2: 0}
    assert planned("--topic", f"{dated}:2,0", "--topic", f"{dated}:0") == {0: 10, 2: 0}
    assert planned("--all-topics") == {0: 10}


def test_offsets_outside_of_the_log_are_moved_into_it(
    command: Command, broker: RunningBroker, dated: str, group: str
) -> None:
    where = ("groups", "reset-offsets", group, "--topic", f"{dated}:0", "--execute")
    beyond = command(*where, "--shift-by", "95")
    assert beyond.err == f"kbroker: warning: offset 99 is beyond the end of {dated}-0; using 10\n"
    assert committed(broker, group) == {(dated, 0): 10}
    below = command(*where, "--shift-by", "-11")
    assert below.err == f"kbroker: warning: offset -1 is below the start of {dated}-0; using 0\n"
    assert committed(broker, group) == {(dated, 0): 0}


def test_a_partition_without_an_offset(command: Command, dated: str, group: str) -> None:
    where = ("groups", "reset-offsets", group, "--topic", f"{dated}:0,1", "--dry-run", "--export")
    current = command(*where, "--to-current")
    assert (current.code, current.lines) == (OK, [f"{dated},0,4", f"{dated},1,0"])
    assert (
        current.err
        == f"kbroker: warning: consumer group {group} has no offset of {dated}-1 yet; using its end\n"
    )
    shifted = command(*where, "--shift-by", "1")
    assert shifted == (
        REFUSED,
        "",
        f"kbroker: consumer group {group} has no offset of {dated}-1 that could be shifted\n",
    )


def test_what_is_exported_can_be_brought_back(
    command: Command, broker: RunningBroker, dated: str, group: str, tmp_path: Path
) -> None:
    exported = command(
        "groups", "reset-offsets", group, "--all-topics", "--to-current", "--dry-run", "--export"
    )
    assert (exported.code, exported.out) == (OK, f"{dated},0,4\n")
    (tmp_path / "plan.csv").write_text(exported.out)
    commit(broker, group, {(dated, 0): 9})
    assert (
        command("groups", "reset-offsets", group, "--from-file", tmp_path / "plan.csv", "--execute").code
        == OK
    )
    assert committed(broker, group) == {(dated, 0): 4}


def test_several_groups_and_their_file(
    command: Command, broker: RunningBroker, dated: str, group: str, tmp_path: Path
) -> None:
    other = commit(broker, f"{group}-other", {(dated, 0): 8})
    exported = command(
        "groups", "reset-offsets", group, "-g", other, "--all-topics", "--to-current", "--dry-run", "--export"
    )
    assert exported.lines == [f"{group},{dated},0,4", f"{other},{dated},0,8"]
    (tmp_path / "plan.csv").write_text(exported.out.replace(",8", ",3"))
    assert (
        command(
            "groups", "reset-offsets", "--all-groups", "--from-file", tmp_path / "plan.csv", "--execute"
        ).code
        == OK
    )
    assert (committed(broker, group), committed(broker, other)) == ({(dated, 0): 4}, {(dated, 0): 3})
    one = command("groups", "reset-offsets", other, "--from-file", tmp_path / "plan.csv", "--export")
    assert one.out == f"{dated},0,3\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("t,0,1\n", "line 1 of"),
        ("g,t,0,1\nh,t,0\n", "line 2 of"),
        ("g,t,0,1\n", "has no offsets for consumer group h"),
    ],
    ids=["no-group", "too-few", "a-group-is-missing"],
)
def test_a_file_that_does_not_fit_the_groups(
    command: Command, tmp_path: Path, text: str, complaint: str
) -> None:
    (tmp_path / "plan").write_text(text)
    refused = command("groups", "reset-offsets", "g", "h", "--from-file", tmp_path / "plan")
    assert (refused.code, refused.out, refused.err.count("\n")) == (USAGE, "", 1)
    assert complaint in refused.err


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_group_that_has_members_is_refused_and_the_others_are_reset(
    command: Command, broker: RunningBroker, dated: str, group: str, protocol: str
) -> None:
    taken = f"{group}-taken"
    with member(broker, taken, dated, protocol):
        for mode in ("--dry-run", "--execute"):
            ended = command(
                "groups",
                "reset-offsets",
                taken,
                group,
                "--topic",
                f"{dated}:0",
                "--to-latest",
                mode,
                "--json",
            )
            assert (ended.code, [row["group"] for row in ended.json]) == (REFUSED, [group])
            assert (
                ended.err
                == f"kbroker: consumer group {taken} is not empty: it has 1 member; stop them first\n"
            )
    assert committed(broker, group) == {(dated, 0): 10}
    assert committed(broker, taken) == {}


def test_a_group_that_had_members_of_the_new_protocol(
    command: Command, broker: RunningBroker, dated: str
) -> None:
    group = f"{dated}-kip848"
    with member(broker, group, dated, "consumer"):
        pass
    assert (
        command(
            "groups", "reset-offsets", group, "--topic", f"{dated}:0", "--to-offset", "8", "--execute"
        ).code
        == OK
    )
    assert (
        command("consume", dated, "--group", group, "--group-protocol", "consumer", "-n", "1").out
        == "value-8\n"
    )


def test_a_group_that_does_not_exist_yet_begins_there(command: Command, dated: str) -> None:
    group = f"{dated}-newborn"
    assert command("groups", "reset-offsets", group, "--topic", dated, "--to-offset", "8").code == OK
    assert group not in [row["group"] for row in command("groups", "list", "--json").json]
    made = command("groups", "reset-offsets", group, "--topic", f"{dated}:0", "--to-offset", "8", "--execute")
    assert (made.code, made.err) == (OK, "")
    assert command("consume", dated, "--group", group, "-n", "1").out == "value-8\n"


def test_a_share_group_is_not_reset(command: Command, dated: str) -> None:
    share = f"{dated}-share"
    assert (
        command("share-groups", "reset-offsets", share, "--topic", dated, "--to-latest", "--execute").code
        == OK
    )
    refused = command("groups", "reset-offsets", share, "--topic", dated, "--to-earliest", "--execute")
    assert refused == (
        REFUSED,
        "",
        f"kbroker: group {share} is a share group; use `kbroker share-groups reset-offsets {share}`\n",
    )


def test_nothing_is_changed_where_something_does_not_exist(
    command: Command, broker: RunningBroker, dated: str, group: str
) -> None:
    complaints = {
        "no-such-topic": "there is no topic no-such-topic",
        "no-such-topic:0": "there is no topic no-such-topic",
        f"{dated}:3,7,0": f"there is no partition {dated}-3, {dated}-7",
    }
    for place, complaint in complaints.items():
        refused = command(
            "groups", "reset-offsets", group, "--topic", dated, "--topic", place, "--to-earliest", "--execute"
        )
        assert refused == (REFUSED, "", f"kbroker: {complaint}\n")
    nothing = command("groups", "reset-offsets", "nobody", "--all-topics", "--to-earliest", "--execute")
    assert nothing == (
        REFUSED,
        "",
        "kbroker: consumer group nobody has committed no offsets: name topics with --topic\n",
    )
    assert committed(broker, group) == {(dated, 0): 4}
