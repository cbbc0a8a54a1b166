"""`kbroker consume --group` against a real broker, in both protocols: where it begins, which
offsets it commits, and how it ends."""

from __future__ import annotations

import fcntl
import re
import signal
import subprocess
import sys
import termios
from array import array
from pathlib import Path
from typing import IO, Any

import pytest

from kbroker.cli import consumed
from kbroker.cli.exits import INTERRUPTED, OK, REFUSED
from kbroker.errors import ErrorCode
from kbroker.testing.broker import RunningBroker
from tests.cli.conftest import Command
from tests.cli.consumer_groups import EITHER_PROTOCOL, ON_EACH_ENGINE, committed, consuming, until

pytestmark = ON_EACH_ENGINE
RECORDS = 12
NOTHING_COMES_MS = "500"
WARNING = re.compile(
    "kbroker: warning: ([0-9]+) records were printed but not committed, and may be delivered again: "
)


@pytest.fixture
def filled(command: Command, topic: str, tmp_path: Path) -> str:
    """The topic with twelve records, four in each of three partitions: value-0 and so on."""
    for partition in range(3):
        (tmp_path / "lines").write_text(
            "".join(f"value-{number}\n" for number in range(partition, RECORDS, 3))
        )
        assert command("produce", topic, tmp_path / "lines", "-p", str(partition)).code == OK
    return topic


@pytest.fixture(params=EITHER_PROTOCOL)
def as_member(request: pytest.FixtureRequest, topic: str) -> tuple[str, ...]:
    """Options of a member; the group is named after the topic."""
    return ("--group", topic, "--group-protocol", request.param)


def values(*numbers: int) -> list[str]:
    return sorted(f"value-{number}" for number in numbers)


def members(command: Command, group: str) -> list[Any]:
    described = command("groups", "describe", group, "--members", "--json")
    return list(described.json[0]["members"]) if described.code == OK else []


def test_a_group_goes_on_where_it_has_committed(
    command: Command, broker: RunningBroker, filled: str, as_member: tuple[str, ...]
) -> None:
    first = command("consume", filled, *as_member, "--from-beginning", "-n", "5")
    assert (first.code, len(first.lines), first.err) == (OK, 5, "")
    assert sum(committed(broker, filled).values()) == 5
    rest = command(
        "consume", filled, *as_member, "--from-beginning", "--timeout-ms", NOTHING_COMES_MS, "--json"
    )
    assert rest.code == OK
    assert sorted(first.lines + [row["value"] for row in rest.json_lines]) == values(*range(RECORDS))
    assert committed(broker, filled) == {(filled, number): 4 for number in range(3)}


def test_a_new_group_begins_at_the_end_unless_it_is_told(
    command: Command, broker: RunningBroker, filled: str, as_member: tuple[str, ...]
) -> None:
    assert command("consume", filled, *as_member, "--timeout-ms", NOTHING_COMES_MS) == (OK, "", "")
    assert committed(broker, filled) == {}
    assert (
        len(
            command(
                "consume", filled, *as_member, "--from", "earliest", "--timeout-ms", NOTHING_COMES_MS
            ).lines
        )
        == RECORDS
    )


def test_several_topics_and_expressions(
    command: Command, broker: RunningBroker, filled: str, as_member: tuple[str, ...]
) -> None:
    broker.create_topic(f"{filled}.more")
    by_name = command(
        "consume", filled, f"{filled}.more", *as_member, "--from-beginning", "--timeout-ms", NOTHING_COMES_MS
    )
    assert sorted(by_name.lines) == values(*range(RECORDS))
    pattern = "^" + filled.replace(".", "[.]") + "([.]more)?$"
    assert command("groups", "delete", filled).code == OK
    found = command("consume", pattern, *as_member, "--from-beginning", "-n", str(RECORDS))
    assert sorted(found.lines) == values(*range(RECORDS))


def test_logs_of_several_topics(command: Command, broker: RunningBroker, filled: str) -> None:
    """Without a group nothing is committed."""
    broker.create_topic(f"{filled}.more")
    read = command(
        "consume", filled, f"{filled}.more", "--from-beginning", "--timeout-ms", NOTHING_COMES_MS, "-p", "0"
    )
    assert read.lines == [f"value-{number}" for number in range(0, RECORDS, 3)]
    assert "kbroker-consume" not in [row["group"] for row in command("groups", "list", "--json").json]


def test_members_share_the_partitions(
    command: Command, broker: RunningBroker, filled: str, as_member: tuple[str, ...]
) -> None:
    arguments = (filled, *as_member, "--from-beginning")
    with consuming(broker, *arguments) as one, consuming(broker, *arguments) as other:

        def both() -> list[int] | None:
            sizes = [sum(map(len, each["assignment"].values())) for each in members(command, filled)]
            return sizes if sorted(sizes) == [1, 2] else None

        until("both have partitions", both)
        until("all is committed", lambda: sum(committed(broker, filled).values()) == RECORDS or None)
        printed = []
        for process in (one, other):
            process.send_signal(signal.SIGTERM)
            out, errors = process.communicate()
            assert errors == ""
            printed += out.splitlines()
    assert sorted(printed) == values(*range(RECORDS))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_its_offsets_committed_and_the_group_left(
    command: Command, broker: RunningBroker, filled: str, as_member: tuple[str, ...], number: signal.Signals
) -> None:
    with consuming(broker, filled, *as_member, "--from-beginning") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        process.send_signal(number)
        printed = [first, *process.stdout.readlines()]
        assert (process.stderr.read(), process.wait()) == ("", 128 + number)
    assert sum(committed(broker, filled).values()) == len(printed)
    assert members(command, filled) == []


def is_full(pipe: IO[str]) -> bool:
    unread = array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, unread)
    return unread[0] > 60_000  # records of 64 KiB


@pytest.fixture
def many(command: Command, topic: str, tmp_path: Path) -> str:
    """The topic with 2000 records of 1 KB in partition 0: more than one batch, and a batch is
    larger than a pipe's buffer."""
    (tmp_path / "many").write_text("".join(f"{number:05}{'x' * 995}\n" for number in range(2000)))
    assert command("produce", topic, tmp_path / "many", "-p", "0").code == OK
    return topic


@pytest.mark.parametrize(
    ("signals", "code"),
    [((signal.SIGKILL,), -signal.SIGKILL), ((signal.SIGTERM, signal.SIGINT), INTERRUPTED)],
    ids=["killed", "told-twice"],
)
def test_what_was_not_printed_is_never_committed(
    broker: RunningBroker, many: str, signals: tuple[signal.Signals, ...], code: int
) -> None:
    """The reader takes one line and waits: the pipe is full when the command is killed, or gets a
    second signal to end."""
    with consuming(broker, many, "--group", many, "--from-beginning") as process:
        output = process.stdout
        assert output is not None
        assert output.readline().startswith("00000")
        until("the pipe is full", lambda: is_full(output) or None)
        for number in signals:
            process.send_signal(number)
        assert process.wait() == code
        printed = 1 + len(output.read().splitlines())
    assert sum(committed(broker, many).values()) <= printed < 2000


def test_a_member_that_was_expelled_says_what_comes_again(
    command: Command, broker: RunningBroker, many: str, as_member: tuple[str, ...]
) -> None:
    """It cannot commit the batch that it was printing, and says which records will be
    redelivered."""
    with consuming(broker, many, *as_member, "--from-beginning", "-n", "700") as process:
        output, errors = process.stdout, process.stderr
        assert output is not None
        assert errors is not None
        until("the pipe is full", lambda: is_full(output) or None)
        (who,) = members(command, many)
        expel(broker, many, who["member_id"], as_member[-1])
        assert len(output.read().splitlines()) == 700
        assert process.wait() == OK
        said = [WARNING.match(line) for line in errors.read().splitlines()]
    refused = sum(int(found[1]) for found in said if found is not None)
    assert None not in said
    assert refused > 0
    assert sum(committed(broker, many).values()) == 700 - refused


def expel(broker: RunningBroker, group: str, member_id: str, protocol: str) -> None:
    with broker.connect() as connection:
        if protocol == "classic":
            row = {"member_id": member_id, "group_instance_id": None, "reason": None}
            answer = connection.call("leave_group", group_id=group, members=[row]).members[0]
        else:
            leaving = {
                "group_id": group,
                "member_id": member_id,
                "member_epoch": -1,
                "topic_partitions": None,
            }
            answer = connection.call("consumer_group_heartbeat", **leaving)
        assert answer.error_code is ErrorCode.none


def test_a_reader_that_leaves_early(
    command: Command, broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    """Records that the reader did not take are not committed."""
    (tmp_path / "many").write_text("".join(f"{'x' * 200}\n" for _ in range(5000)))
    assert command("produce", topic, tmp_path / "many", "-p", "0").code == OK
    line = (
        f"{sys.executable} -m kbroker consume {topic} -g {topic} --from-beginning -n 5000 -b "
        f"{broker.bootstrap} | head -n 1"
    )
    ended = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.stdout, ended.stderr) == (f"{'x' * 200}\n", "")
    assert sum(committed(broker, topic).values()) < 5000


def test_a_member_without_partitions_ends_when_nothing_comes(
    command: Command,
    broker: RunningBroker,
    filled: str,
    as_member: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the new protocol the client library does not report that it has joined if no partition is
    assigned to it."""
    monkeypatch.setattr(consumed, "JOINING_S", 1.0)
    arguments = (filled, *as_member, "--from-beginning")
    with consuming(broker, *arguments), consuming(broker, *arguments), consuming(broker, *arguments):
        until("three members have one each", lambda: len(members(command, filled)) == 3 or None)
        assert command("consume", *arguments, "--timeout-ms", NOTHING_COMES_MS).code == OK


def test_what_cannot_be_joined_or_read(command: Command, filled: str) -> None:
    missing = command("consume", filled, "no-such-topic", "--group", "g")
    assert missing == (REFUSED, "", "kbroker: there is no topic no-such-topic\n")
    share = f"{filled}-share"
    assert (
        command("share-groups", "reset-offsets", share, "--topic", filled, "--to-latest", "--execute").code
        == OK
    )
    refused = command("consume", filled, "--group", share)
    text = (
        f"kbroker: group {share} is a share group, and this command is for consumer groups; `kbroker "
        "share-consume` is for those\n"
    )
    assert refused == (REFUSED, "", text)
