"""This version opens directories that earlier versions wrote, and returns the same content;
write.py made them."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.cli import run
from kbroker.testing.broker import open_test_broker
from tests.formats.filling import drain, look

HERE = Path(__file__).parent
ARCHIVES = sorted(HERE.glob("v*/*.tar.xz"))


DEFAULT_RUN = ("segment-stopped", "segment-killed", "lmdb-killed", "rocksdb-killed")


def stored() -> Iterator[object]:
    for archive in ARCHIVES:
        name = archive.name.removesuffix(".tar.xz")
        yield pytest.param(
            archive,
            marks=[] if name in DEFAULT_RUN else [pytest.mark.full],
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
        storage=engines["log_engine"], state_storage=engines["state_engine"], data_dir=data_dir
    ) as broker:
        assert look(broker) == expected["seen"]
        assert drain(broker) == {value: [count + 1] for value, count in expected["left"].items()}
        broker.kill()
        broker.start()
        assert drain(broker) == {}


def test_every_engine_is_kept() -> None:
    assert {each.name.split("-")[0] for each in ARCHIVES} >= {"segment", "lmdb", "rocksdb"}
