"""`kbroker share-groups inflight`: the strip and the table for made-up windows, and the command
against a broker."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import count
from typing import Any

import click
import pytest
from rich.console import Console

from kbroker.cli import inflight as inflight_module
from kbroker.cli import watching
from kbroker.cli.exits import INTERRUPTED, OK, REFUSED, UNREACHABLE, USAGE
from kbroker.cli.inflight_view import LOOKS, draw
from kbroker.cli.params import AdminAddressType, AdminUrlType
from kbroker.client.broker_process import free_port
from kbroker.client.rpc import Connection
from kbroker.share.in_flight_view import STATE_NAMES
from kbroker.testing.broker import RunningBroker, open_test_broker
from tests.cli.conftest import Command

GROUP = "workers"


def in_flight(
    first: int,
    last: int,
    state: str,
    deliveries: int = 1,
    holder: str | None = None,
    left_ms: int | None = None,
    saving: bool = False,
) -> dict[str, Any]:
    return {
        "first_offset": first,
        "last_offset": last,
        "state": state,
        "saving": saving,
        "delivery_count": deliveries,
        "member_id": holder,
        "client_id": holder and f"client-{holder}",
        "client_host": holder and "10.0.0.7",
        "in_group": holder and True,
        "lock_ms_left": left_ms,
    }


def window(
    *ranges: dict[str, Any], start: int = 0, log_end: int = 1000, partition: int = 0
) -> dict[str, Any]:
    end = ranges[-1]["last_offset"] if ranges else start
    offsets = {"start_offset": start, "end_offset": end, "log_end_offset": log_end, "lock_limit": 2000}
    return {"topic": "orders", "partition": partition, **offsets, "ranges": list(ranges)}


def drawn(*windows: dict[str, Any], width: int = 60) -> list[str]:
    return [
        line.plain for line in draw({"group": GROUP, "now_ms": 1, "share_partitions": list(windows)}, width)
    ]


def test_a_character_for_every_offset_and_a_row_for_what_a_member_holds() -> None:
    lines = drawn(
        window(
            in_flight(100, 104, "acquired", 1, "M1", 12_340),
            in_flight(105, 106, "available", 1),
            in_flight(107, 109, "acknowledged"),
            in_flight(110, 110, "archived"),
            in_flight(111, 112, "archiving", 5),
            in_flight(113, 114, "acknowledged", saving=True),
            in_flight(115, 116, "gap", 0),
            in_flight(117, 117, "acquired", 2, "M2", 900),
            in_flight(118, 119, "acquired", 1, "M1", 12_340),
            start=100,
        )
    )
    assert lines[:4] == [
        "group workers: 1 share-partition in the broker's memory",
        "",
        "orders-0  offsets 100 to 119: 20 of 2000 in flight, 880 behind them",
        "#####oo+++x!!~~__###",
    ]
    assert lines[7:] == [
        "TOPIC   PARTITION  OFFSETS  RANGES  RECORDS  DELIVERIES  CLIENT-ID  HOST      LEFT",
        "orders          0  100-119       2        7           1  client-M1  10.0.0.7  12.3 s",
        "orders          0  117           1        1           2  client-M2  10.0.0.7  0.9 s",
    ]
    assert lines[5] == "# acquired  ! archiving  ~ saving  o available  x archived  + acknowledged  _ gap"


def held_by(*holders: dict[str, Any], member_ids: bool = False) -> list[list[str]]:
    """The last columns of the table when each holder has one record."""
    ranges = [{**in_flight(n, n, "acquired", 1, "M", 1000), **holder} for n, holder in enumerate(holders)]
    lines = draw(
        {"group": GROUP, "now_ms": 1, "share_partitions": [window(*ranges)]}, 60, member_ids=member_ids
    )
    return [re.split("  +", line.plain)[6:] for line in lines[-len(holders) :]]


def test_holders_are_told_apart() -> None:
    """Most clients keep the default client id of their library."""
    rows = held_by(
        {"member_id": "aaaabb1", "client_id": "rdkafka", "client_host": "h1"},
        {"member_id": "aaaabb2", "client_id": "rdkafka", "client_host": "h1"},
        {"member_id": "aaaabb3", "client_id": "rdkafka", "client_host": "h2"},
    )
    assert rows == [
        ["rdkafka (aaaabb1)", "h1", "1.0 s"],
        ["rdkafka (aaaabb2)", "h1", "1.0 s"],
        ["rdkafka", "h2", "1.0 s"],
    ]


def test_holders_that_have_left_or_have_no_name() -> None:
    rows = held_by(
        {"member_id": "M1", "client_id": "packer", "client_host": "h", "in_group": False},
        {"member_id": "M2", "client_id": "", "client_host": "h"},
        {"member_id": "M3", "client_id": "x" * 50 + "\x1b", "client_host": "h"},
        member_ids=True,
    )
    assert rows == [
        ["packer, left the group", "h", "1.0 s", "M1"],
        ["M2", "h", "1.0 s", "M2"],
        ["x" * 39 + "…", "h", "1.0 s", "M3"],
    ]


def test_a_broker_of_before_says_member_ids_only() -> None:
    old = in_flight(0, 0, "acquired", 1, "M1", 1000)
    for name in ("client_id", "client_host", "in_group"):
        del old[name]
    assert drawn(window(old))[-1].split() == ["orders", "0", "0", "1", "1", "1", "M1", "-", "1.0", "s"]


def test_records_that_wait_for_their_redelivery() -> None:
    lines = [line for line in drawn(window(in_flight(0, 2, "acquired"), in_flight(3, 4, "waiting", 2)))]
    assert "###::" in lines
    assert any(line.startswith("# acquired") and "  : waiting  " in line for line in lines)


def test_every_state_has_a_symbol_of_its_own() -> None:
    assert set(LOOKS) == {*STATE_NAMES.values(), "saving"}
    assert len({look.symbol for look in LOOKS.values()}) == len(LOOKS)


def test_a_window_wider_than_the_terminal() -> None:
    """Each character shows the most important state among its offsets."""
    ranges = [
        in_flight(0, 49, "acknowledged"),
        in_flight(50, 50, "acquired", 1, "M", 1),
        in_flight(51, 79, "archived"),
        in_flight(80, 104, "available"),
    ]
    _, _, head, strip, *_ = drawn(window(*ranges), width=10)
    assert head.endswith(", 11 offsets a character")
    assert strip == "++++#xxooo"
    assert len(drawn(window(in_flight(0, 10, "available")), width=10)[3]) == 6


def test_nothing_in_flight() -> None:
    assert drawn(window(start=7, log_end=9))[2:3] == [
        "orders-0  nothing in flight, next offset 7, 2 behind it"
    ]
    assert drawn(window(start=7, log_end=5))[2:3] == [
        "orders-0  nothing in flight, next offset 7, 0 behind it"
    ]
    assert drawn() == ["group workers: 0 share-partitions in the broker's memory"]


def test_names_cannot_steer_the_terminal() -> None:
    evil = {**window(in_flight(0, 0, "acquired", 1, "\x1b[2J", 5)), "topic": "a\nb"}
    lines = [line.plain for line in draw({"group": "\x1b]0;x", "now_ms": 1, "share_partitions": [evil]}, 60)]
    assert all(line.isprintable() for line in lines)


def test_states_have_colours_on_a_terminal() -> None:
    console = Console(force_terminal=True, color_system="standard", width=60)
    with console.capture() as captured:
        for line in draw(
            {"group": GROUP, "now_ms": 1, "share_partitions": [window(in_flight(0, 3, "acknowledged"))]}, 60
        ):
            console.print(line)
    assert "\x1b[32m++++\x1b[0m" in captured.get()


@pytest.mark.parametrize(
    ("text", "address"),
    [("9644", ("127.0.0.1", 9644)), ("::1:5", None), ("[::1]:5", ("::1", 5)), ("h:70000", None), ("0", None)],
)
def test_a_port_alone_is_the_loopback_addresss(text: str, address: tuple[str, int] | None) -> None:
    if address is not None:
        assert AdminAddressType().convert(text, None, None) == address
        assert AdminUrlType().convert(text, None, None) == (address, False)
        assert AdminUrlType().convert(f"http://{text}", None, None) == (address, False)
        assert AdminUrlType().convert(f"https://{text}/", None, None) == (address, True)
        return
    for kind, given in (
        (AdminAddressType(), text),
        (AdminUrlType(), text),
        (AdminUrlType(), f"https://{text}"),
    ):
        with pytest.raises(click.BadParameter):
            kind.convert(given, None, None)
    with pytest.raises(click.BadParameter, match="neither"):
        AdminUrlType().convert("ftp://h:1", None, None)


@pytest.fixture(scope="module")
def admin_broker() -> Iterator[RunningBroker]:
    with open_test_broker(extra_args=["--admin", "0"]) as broker:
        yield broker


@pytest.fixture
def admin(admin_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> str:
    """The endpoint's address; it belongs to the broker of the commands."""
    monkeypatch.setenv("KBROKER_BOOTSTRAP", admin_broker.bootstrap)
    return admin_broker.ready_line.rpartition("admin http://")[2].rstrip(")")


def acquire_three(connection: Connection) -> dict[str, str]:
    """M1 joins and holds three records. Returns the member."""
    member = {"group_id": GROUP, "member_id": "M1"}
    joined = connection.call(
        "share_group_heartbeat",
        1,
        member_epoch=0,
        rack_id=None,
        subscribed_topic_names=["orders"],
        **member,
    )
    rows = [{"partition_index": 0, "acknowledgement_batches": ()}]
    topics = [{"topic_id": joined.assignment.topic_partitions[0].topic_id, "partitions": rows}]
    limits = {
        "max_wait": 10_000,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "max_records": 3,
        "batch_size": 3,
        "share_acquire_mode": 1,
    }
    connection.call(
        "share_fetch",
        2,
        share_session_epoch=0,
        topics=topics,
        forgotten_topics_data=(),
        is_renew_ack=False,
        **member,
        **limits,
    )
    return member


def test_the_command(
    command: Command, admin: str, admin_broker: RunningBroker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lines = tmp_path_factory.mktemp("lines") / "lines"
    lines.write_text("a\nb\nc\nd\n")
    assert command("topics", "create", "orders").code == OK
    assert command("produce", "orders", lines).code == OK
    admin_broker.set_group_config(GROUP, {"share.auto.offset.reset": "earliest"})
    with admin_broker.connect() as connection:
        member = acquire_three(connection)
        ran = command("share-groups", "inflight", GROUP, "--admin", admin)
        assert ran.code == OK
        assert ran.lines[2:4] == ["orders-0  offsets 0 to 3: 4 of 2000 in flight, 0 behind them", "###o"]
        assert ran.lines[-1].split()[:8] == ["orders", "0", "0-2", "1", "3", "1", "test", "127.0.0.1"]
        assert (
            command("share-groups", "inflight", GROUP, "--member-ids", "--admin", admin).lines[-1].split()[-1]
            == "M1"
        )

        found = command(
            "share-groups", "inflight", GROUP, "--topic", "orders", "--json", "--admin", admin
        ).json
        (partition,) = found["share_partitions"]
        left_ms = partition["ranges"][0].pop("lock_ms_left")
        assert 0 < left_ms <= 30_000
        assert partition["ranges"][0] == {
            "first_offset": 0, "last_offset": 2, "state": "acquired", "saving": False, "delivery_count": 1,
            "member_id": "M1",
            "client_id": "test", "client_host": "127.0.0.1", "in_group": True,
        }  # fmt: skip
        assert (found["group"], partition["log_end_offset"]) == (GROUP, 4)
        assert partition["ranges"][1]["client_id"] is partition["ranges"][1]["in_group"] is None

        connection.call(
            "share_group_heartbeat", 1, member_epoch=-1, rack_id=None, subscribed_topic_names=None, **member
        )
        ran = command("share-groups", "inflight", GROUP, "--admin", admin)
        assert "test, left the group  127.0.0.1" in ran.lines[-1]


def test_watching_goes_on_until_it_is_interrupted(
    command: Command, admin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = count(1)

    def sleep(seconds: float) -> None:
        assert seconds == 0.25
        if next(times) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(watching.time, "sleep", sleep)
    arguments = ("share-groups", "inflight", GROUP, "--watch", "--interval-ms", "250", "--admin", admin)
    ran = command(*arguments, "--json")
    assert ran.code == INTERRUPTED
    assert [each["group"] for each in ran.json_lines] == [GROUP] * 3
    times = count(1)
    ran = command(*arguments)
    assert (ran.code, sum(line.startswith("group workers") for line in ran.lines)) == (INTERRUPTED, 3)


def test_watching_on_a_terminal_draws_in_place(
    admin: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn_lines = []
    monkeypatch.setattr(watching.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(
        inflight_module,
        "ask_in_flight",
        lambda *_: {"group": GROUP, "now_ms": 1, "share_partitions": [window()]},
    )
    times = count(1)

    def sleep(_: float) -> None:
        drawn_lines.append(capsys.readouterr().out)
        if next(times) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(watching.time, "sleep", sleep)
    with pytest.raises(click.Abort):
        inflight_module.inflight.main([GROUP, "--watch", "--admin", admin], standalone_mode=False)
    assert all("nothing in flight" in text for text in drawn_lines[1:])


def test_refusals_are_one_line(command: Command, admin: str, broker: RunningBroker) -> None:
    for arguments, code, text in (
        (("nobody", "--admin", admin), REFUSED, "there is no share group nobody"),
        ((GROUP, "--topic", "none", "--admin", admin), REFUSED, "there is no topic none"),
        ((GROUP, "--admin", broker.bootstrap), UNREACHABLE, "is it the Kafka port?"),
        ((GROUP, "--admin", str(free_port())), UNREACHABLE, "was the broker started with --admin?"),
        ((GROUP,), USAGE, "Missing option '--admin'"),
        ((" ", "--admin", admin), USAGE, "must not be empty"),
    ):
        ran = command("share-groups", "inflight", *arguments)
        assert (ran.code, ran.out, len(ran.err.splitlines())) == (code, "", 1), ran
        assert text in ran.err


def test_a_group_name_with_anything_in_it(command: Command, admin: str) -> None:
    for name in ("a/b", "?x=1#y", "ü & %2F"):
        assert (
            f"there is no share group {name}"
            in command("share-groups", "inflight", name, "--admin", admin).err
        )


def test_json_is_what_the_broker_says(command: Command, admin: str) -> None:
    ran = command("share-groups", "inflight", GROUP, "--json", "--admin", admin)
    assert set(json.loads(ran.out)) == {"group", "now_ms", "share_partitions"}


def test_a_consumer_group_leads_to_the_command_for_it(command: Command, admin: str) -> None:
    assert command("topics", "create", "offsets-only").code == OK
    made = command(
        "groups", "reset-offsets", "billing", "--topic", "offsets-only", "--to-latest", "--execute"
    )
    assert made.code == OK
    text = (
        "kbroker: group billing is a consumer group: it holds no records, and `kbroker groups describe` "
        "shows its offsets\n"
    )
    assert command("share-groups", "inflight", "billing", "--admin", admin) == (REFUSED, "", text)
