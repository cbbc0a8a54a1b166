"""`kbroker share-groups reset-offsets` against a real broker: every target, the refusals, and that
consumers follow."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kbroker.cli.exits import OK, REFUSED, USAGE
from kbroker.testing.broker import RunningBroker
from tests.cli.conftest import Command
from tests.cli.test_produce_and_consume import share_consumer

FIRST_MS = 1_700_000_000_000
"""Time of the record at offset 0; each is a second later than the one before."""


@pytest.fixture
def dated(broker: RunningBroker, topic: str) -> str:
    """A topic with ten records in its partition 0, one a second, and nothing in the other two."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for n in range(10):
        producer.produce(topic, f"value-{n}".encode(), partition=0, timestamp=FIRST_MS + n * 1000)
    assert producer.flush(30) == 0
    return topic


@pytest.fixture
def group(command: Command, dated: str, request: pytest.FixtureRequest) -> str:
    """Its offset is 4 in partition 0, and 0, the end, in the others."""
    name = f"g-{request.node.name}"
    assert (
        command("share-groups", "reset-offsets", name, "--topic", dated, "--to-offset", "4", "--execute").code
        == OK
    )
    return name


def new_offsets(command: Command, group: str, *arguments: str | Path) -> dict[int, int]:
    """New offset by partition, from a dry run."""
    ran = command("share-groups", "reset-offsets", group, *arguments, "--dry-run", "--json")
    assert ran.code == OK
    return {row["partition"]: row["new_offset"] for row in ran.json}


def start_offset(command: Command, group: str, partition: int = 0) -> int | None:
    (described,) = command("share-groups", "describe", group, "--json").json
    (offset,) = [row["start_offset"] for row in described["offsets"] if row["partition"] == partition]
    assert offset is None or isinstance(offset, int)
    return offset


def at(record: int) -> str:
    return datetime.fromtimestamp((FIRST_MS + record * 1000) / 1000, UTC).isoformat(timespec="milliseconds")[
        :-6
    ]


TARGETS = [
    (["--to-earliest"], 0, "value-0"),
    (["--to-offset", "7"], 7, "value-7"),
    (["--to-offset", "0"], 0, "value-0"),
    (["--to-current"], 4, "value-4"),
    (["--to-datetime", at(5)], 5, "value-5"),
    (["--to-datetime", at(5) + "Z"], 5, "value-5"),
    (["--to-datetime", at(5)[:-1] + "1"], 6, "value-6"),
]


@pytest.mark.parametrize(
    ("target", "offset", "next_value"),
    TARGETS,
    ids=["earliest", "offset", "offset-0", "current", "datetime", "datetime-Z", "later"],
)
def test_consumers_go_on_from_there(
    command: Command, dated: str, group: str, target: list[str], offset: int, next_value: str
) -> None:
    where = ["share-groups", "reset-offsets", group, "--topic", f"{dated}:0", *target]
    planned = command(*where, "--dry-run")
    assert [line.split() for line in planned.lines] == [
        ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"],
        [group, dated, "0", str(offset)],
    ]
    assert start_offset(command, group) == 4, "a dry run changes nothing"
    assert command(*where, "--execute") == (OK, planned.out, "")
    assert start_offset(command, group) == offset
    assert command("share-consume", dated, "-g", group, "-n", "1").out == next_value + "\n"


def test_to_latest(command: Command, broker: RunningBroker, dated: str, group: str) -> None:
    assert (
        command("share-groups", "reset-offsets", group, "--all-topics", "--to-latest", "--execute").code == OK
    )
    (described,) = command("share-groups", "describe", group, "--json").json
    assert [(row["start_offset"], row["lag"]) for row in described["offsets"]] == [(10, 0), (0, 0), (0, 0)]


def test_all_partitions_or_some(command: Command, dated: str, group: str) -> None:
    assert new_offsets(command, group, "--topic", dated, "--to-latest") == {0: 10, 1: 0, 2: 0}
    assert new_offsets(command, group, "--topic", f"{dated}:2,0", "--topic", f"{dated}:0", "--to-latest") == {
        0: 10,
        2: 0,
    }
    assert new_offsets(command, group, "--all-topics", "--to-earliest") == {0: 0, 1: 0, 2: 0}


def test_other_time_zones(command: Command, dated: str, group: str) -> None:
    two_hours_east = datetime.fromisoformat(at(5) + "+00:00").timestamp() + 2 * 3600
    text = datetime.fromtimestamp(two_hours_east, UTC).isoformat(timespec="milliseconds")[:-6]
    assert new_offsets(command, group, "--topic", f"{dated}:0", "--to-datetime", text + "+02:00") == {0: 5}


def test_a_time_after_the_last_record_is_the_end(command: Command, dated: str, group: str) -> None:
    ran = command(
        "share-groups",
        "reset-offsets",
        group,
        "--topic",
        f"{dated}:0",
        "--to-datetime",
        at(11),
        "--dry-run",
        "--json",
    )
    assert (ran.code, ran.json[0]["new_offset"]) == (OK, 10)
    assert ran.err == f"kbroker: warning: {dated}-0 has no record at or after that time; using its end\n"


def test_the_current_offset_of_a_partition_that_was_never_used_is_its_end(
    command: Command, dated: str
) -> None:
    ran = command(
        "share-groups",
        "reset-offsets",
        "unborn",
        "--topic",
        f"{dated}:0",
        "--to-current",
        "--dry-run",
        "--json",
    )
    assert (ran.code, ran.json[0]["new_offset"]) == (OK, 10)
    assert "has no offset of" in ran.err


def test_offsets_outside_of_the_log_are_moved_into_it(
    command: Command, dated: str, group: str, tmp_path: Path
) -> None:
    beyond = command(
        "share-groups", "reset-offsets", group, "--topic", f"{dated}:0", "--to-offset", "99", "--execute"
    )
    assert beyond.lines[1].split()[-1] == "10"
    assert beyond.err == f"kbroker: warning: offset 99 is beyond the end of {dated}-0; using 10\n"
    (tmp_path / "plan").write_text(f"{dated},0,-5\n")
    below = command("share-groups", "reset-offsets", group, "--from-file", tmp_path / "plan", "--execute")
    assert below.lines[1].split()[-1] == "0"
    assert below.err == f"kbroker: warning: offset -5 is below the start of {dated}-0; using 0\n"


def test_what_is_exported_can_be_brought_back(
    command: Command, dated: str, group: str, tmp_path: Path
) -> None:
    exported = command(
        "share-groups", "reset-offsets", group, "--all-topics", "--to-current", "--dry-run", "--export"
    )
    assert exported.lines == [f"{dated},0,4", f"{dated},1,0", f"{dated},2,0"]
    (tmp_path / "plan.csv").write_text(exported.out)
    assert len(command("share-consume", dated, "-g", group, "-n", "6").lines) == 6
    assert (
        command(
            "share-groups", "reset-offsets", group, "--from-file", tmp_path / "plan.csv", "--execute"
        ).code
        == OK
    )
    assert start_offset(command, group) == 4


def test_a_file_with_several_groups(command: Command, dated: str, group: str, tmp_path: Path) -> None:
    rows = f'other,"{dated}",0,1\n\n{group},"{dated}",0,2\n'
    (tmp_path / "plan").write_text(rows, encoding="utf-8-sig")  # as spreadsheets save it
    assert new_offsets(command, group, "--from-file", tmp_path / "plan") == {0: 2}


BAD_PLANS = {
    "": "has no offsets for share group",
    "TOPIC,PARTITION,OFFSET\n": "line 1 of",
    "t,0,1\nt,0\n": "line 2 of",
    "t,0,1\nt,0,2\n": "t-0 is listed twice",
    "other,t,0,1\n": "has no offsets for share group",
    't,0,"1\n': "cannot be read",
}


@pytest.mark.parametrize(("text", "complaint"), BAD_PLANS.items(), ids=range(len(BAD_PLANS)))
def test_a_file_that_makes_no_sense(command: Command, tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "plan").write_text(text)
    refused = command("share-groups", "reset-offsets", "g", "--from-file", tmp_path / "plan", "--dry-run")
    assert (refused.code, refused.out, refused.err.count("\n")) == (USAGE, "", 1)
    assert complaint in refused.err


def test_a_group_that_has_members_is_refused(command: Command, broker: RunningBroker, dated: str) -> None:
    with share_consumer(broker, dated, "taken") as process:
        assert process.stdout is not None
        process.stdout.readline()
        for mode in ("--dry-run", "--execute"):
            refused = command(
                "share-groups", "reset-offsets", "taken", "--topic", dated, "--to-earliest", mode
            )
            assert (refused.code, refused.out) == (REFUSED, "")
            assert (
                refused.err == "kbroker: share group taken is not empty: it has 1 member; stop them first\n"
            )
        process.terminate()


def test_a_group_that_does_not_exist_yet_begins_there(command: Command, dated: str) -> None:
    assert (
        command(
            "share-groups", "reset-offsets", "newborn", "--topic", dated, "--to-offset", "8", "--dry-run"
        ).code
        == OK
    )
    assert "newborn" not in command("share-groups", "list").lines
    made = command(
        "share-groups", "reset-offsets", "newborn", "--topic", f"{dated}:0", "--to-offset", "8", "--execute"
    )
    assert (made.code, made.err) == (OK, "")
    assert command("share-consume", dated, "-g", "newborn", "-n", "1").out == "value-8\n"


def test_nothing_is_changed_where_something_does_not_exist(command: Command, dated: str, group: str) -> None:
    complaints = {
        "no-such-topic": "there is no topic no-such-topic",
        "no-such-topic:0": "there is no topic no-such-topic",
        f"{dated}:3,7,0": f"there is no partition {dated}-3, {dated}-7",
    }
    for place, complaint in complaints.items():
        refused = command(
            "share-groups",
            "reset-offsets",
            group,
            "--topic",
            dated,
            "--topic",
            place,
            "--to-earliest",
            "--execute",
        )
        assert refused == (REFUSED, "", f"kbroker: {complaint}\n")
    nothing = command("share-groups", "reset-offsets", "nobody", "--all-topics", "--to-earliest", "--execute")
    assert nothing == (
        REFUSED,
        "",
        "kbroker: share group nobody has no offset information: name topics with --topic\n",
    )
    assert start_offset(command, group) == 4
