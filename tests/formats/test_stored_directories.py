"""This version opens directories that earlier versions wrote, and returns the same content;
write.py made them."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from uuid import UUID

import pytest

from kbroker import plugins
from kbroker.cli import run
from kbroker.client.rpc import Connection
from kbroker.client.security import ClientSecurity
from kbroker.client.unreachable import NotAuthenticated
from kbroker.formats.batches import iter_headers
from kbroker.formats.compacted_batches import DELETE_HORIZON
from kbroker.storage.spi import LogId
from kbroker.testing.broker import free_port, open_test_broker
from tests.formats.filling import drain, look
from tests.formats.securing import AUTHORIZED, PASSWORDS, look_at_security

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
HERE = Path(__file__).parent
ARCHIVES = sorted(HERE.glob("v[0-9]/*.tar.xz"))


DEFAULT_RUN = {
    "v1": ("segment-stopped", "segment-killed", "lmdb-killed", "rocksdb-killed"),
    "v3": ("segment-killed",),
    "v4": ("segment-killed", "lmdb-killed"),
    "v5": ("segment-killed", "rocksdb-killed"),
}


def stored() -> Iterator[object]:
    for archive in ARCHIVES:
        name = archive.name.removesuffix(".tar.xz")
        is_short = name in DEFAULT_RUN[archive.parent.name]
        yield pytest.param(
            archive,
            marks=[] if is_short else [pytest.mark.full],
            id=f"{archive.parent.name}-{name}",
        )


@pytest.mark.parametrize("archive", [*stored()])
def test_a_stored_directory_shows_the_same(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    data_dir = tmp_path / "data"
    engines = json.loads((data_dir / "kbroker.json").read_text())
    assert run(["storage", "inspect", str(data_dir)]) == 0, capsys.readouterr()
    expected = json.loads((tmp_path / "expected.json").read_text())
    with open_test_broker(
        storage=engines["log_engine"],
        state_storage=engines["state_engine"],
        data_dir=data_dir,
        config=AUTHORIZED,
    ) as broker:
        seen = {**look(broker), **look_at_security(broker)}
        assert {name: seen[name] for name in expected["seen"]} == expected["seen"]
        assert drain(broker) == {value: [count + 1] for value, count in expected["left"].items()}
        broker.kill()
        broker.start()
        assert drain(broker) == {}


def test_users_log_in_with_the_passwords_that_they_had(tmp_path: Path) -> None:
    """The stored directories of format 4 show what that format is about."""
    (archive,) = HERE.glob("v4/rocksdb-killed.tar.xz")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    port = free_port()
    config = {
        "listeners": f"SASL_PLAINTEXT://127.0.0.1:{port}",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
    }
    with open_test_broker(storage="rocksdb", data_dir=tmp_path / "data", port=port, config=config):
        for (user, password), mechanism in zip(PASSWORDS.items(), MECHANISMS, strict=True):
            for given in (password, f"{password}!"):
                security = ClientSecurity.of(
                    {
                        "security.protocol": "SASL_PLAINTEXT",
                        "sasl.mechanism": mechanism,
                        "sasl.jaas.config": f'{SCRAM} required username="{user}" password="{given}";',
                    }
                )
                expected = nullcontext() if given == password else pytest.raises(NotAuthenticated)
                with expected, Connection("127.0.0.1", port, security=security):
                    pass


@pytest.mark.parametrize("version", ["v1", "v3", "v4", "v5"])
def test_every_engine_is_kept(version: str) -> None:
    archives = [each for each in ARCHIVES if each.parent.name == version]
    assert {each.name.split("-")[0] for each in archives} >= {"segment", "lmdb", "rocksdb"}
    for each in archives:
        with tarfile.open(each) as tar:
            about = tar.extractfile("data/kbroker.json")
            assert about is not None
            assert json.loads(about.read())["format_version"] == int(version.removeprefix("v"))


def test_the_compacted_topic_has_holes_of_all_kinds(tmp_path: Path) -> None:
    """The stored directories of format 3 show what that format is about."""
    (archive,) = HERE.glob("v3/segment-killed.tar.xz")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    expected = json.loads((tmp_path / "expected.json").read_text())["seen"]
    log = LogId(UUID(expected["topics"]["table"]["id"]), 0)
    logs = plugins.log_store_factory("segment").open_reader(tmp_path / "data" / "log-segment")
    try:
        end = logs.bounds(log).end_offset
        views = logs.read(log, 0, max_bytes=1 << 20, end_offset=end)
        headers = [header for view in views for _, header in iter_headers(view)]
    finally:
        logs.close()
    places = [(each.base_offset, each.last_offset, each.record_count) for each in headers]
    assert places[0] == (0, 2, 0), "a batch without records"
    assert (4, 4) not in [place[:2] for place in places] or (4, 4, 0) in places, "aborted"
    assert (8, 11, 3) in places, "a hole in a batch"
    assert any(each.attributes & DELETE_HORIZON for each in headers), "tombstones"
    assert [record[1] for record in expected["records"]["table"]] == [3, 6, 7, 8, 9, 10, 12, 13, 15]
