"""`kbroker storage inspect` beside a live broker and on a directory without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.cli import run
from kbroker.cli.exits import DATA_DIRECTORY, OK, REFUSED
from kbroker.cli.storage import _moment
from kbroker.client.rpc import Connection
from kbroker.testing.broker import open_test_broker
from tests.cli.conftest import Command


def commit_half(connection: Connection) -> None:
    rows = [
        {
            "partition_index": 0,
            "committed_offset": 4,
            "committed_leader_epoch": 1,
            "committed_metadata": "half",
        }
    ]
    member = {
        "group_id": "readers",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
    }
    connection.call("offset_commit", 9, **member, topics=[{"name": "orders", "partitions": rows}])


@pytest.mark.parametrize("storage", ["segment", "lmdb", "rocksdb"])
def test_beside_a_live_broker_and_after_it(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, storage: str
) -> None:
    (tmp_path / "lines").write_text("".join(f"order {n}\n" for n in range(10)))
    data = tmp_path / "data"
    with open_test_broker(storage=storage, data_dir=data) as broker:
        monkeypatch.setenv("KBROKER_BOOTSTRAP", broker.bootstrap)
        assert command("topics", "create", "orders").code == OK
        assert command("produce", "orders", tmp_path / "lines").code == OK
        assert len(command("share-consume", "orders", "-g", "workers", "-n", "4").lines) == 4
        with broker.connect() as connection:
            commit_half(connection)
        beside = command("storage", "inspect", data, "--check", "--json")
        assert beside.code == OK
    after = command("storage", "inspect", data, "--check", "--json")
    assert after.code == OK
    for found in (beside.json, after.json):
        assert (found["log_engine"], found["state_engine"], found["problems"]) == (storage, storage, [])
        (log,) = found["logs"]
        assert (log["topic"], log["partition"], log["start_offset"], log["end_offset"]) == (
            "orders",
            0,
            0,
            10,
        )
        (share,) = found["share_partitions"]
        assert (share["group"], share["topic"], share["lag"]) == ("workers", "orders", 6)
        assert found["groups"] == [
            {"group": "readers", "type": "classic", "members": 0},
            {"group": "workers", "type": "share", "members": 0},
        ]
        (offset,) = found["offsets"]
        assert (offset["group"], offset["topic"], offset["partition"], offset["offset"], offset["lag"]) == (
            "readers",
            "orders",
            0,
            4,
            6,
        )
        assert (offset["leader_epoch"], offset["metadata"], offset["expires_ms"]) == (1, "half", None)
        assert offset["committed_ms"] > 1_700_000_000_000
    assert after.json["bytes_checked"] > 0
    text = command("storage", "inspect", data, "--segments").out
    assert "healthy: 1 log, " in text
    assert [line.split()[:5] for line in text.splitlines() if line.startswith("readers")] == [
        ["readers", "classic", "0"],
        ["readers", "orders", "0", "4", "6"],
    ]


@pytest.mark.parametrize(
    ("timestamp_ms", "shown"),
    [
        (-1, None),
        (0, "1970-01-01 00:00:00Z"),
        (253_402_300_800_000, "253402300800000 ms"),
        (2**63 - 1, f"{2**63 - 1} ms"),
    ],
)
def test_timestamps_of_producers(timestamp_ms: int, shown: str | None) -> None:
    assert _moment(timestamp_ms) == shown


def test_what_a_start_has_cut_off_is_a_problem(command: Command, tmp_path: Path) -> None:
    with open_test_broker(storage="segment", data_dir=tmp_path / "data"):
        pass
    (log_path,) = (path.parent.parent for path in (tmp_path / "data" / "state-segment").rglob("data.ninja"))
    (log_path / f"{0:020d}.cut").write_bytes(b"batches")
    found = command("storage", "inspect", tmp_path / "data")
    assert found.code == REFUSED
    assert f"problem: {log_path / f'{0:020d}.cut'} holds record batches" in found.out


def test_a_directory_of_something_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["storage", "inspect", str(tmp_path)]) == DATA_DIRECTORY
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert str(tmp_path) in output.err
