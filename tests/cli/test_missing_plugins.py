"""A data directory that needs a plugin of kbroker's own which is not installed: one line names the
plugin and how to install it, and nothing in the directory changes. Tools that can do their work
without the plugin do it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from kbroker.broker.broker import open_broker
from kbroker.broker.options import StartOptions
from kbroker.cli.exits import DATA_DIRECTORY, OK, USAGE
from kbroker.errors import ErrorCode
from kbroker.formats.share_records import RecordType, ShareGroupMetadata
from kbroker.formats.state import GroupKey
from kbroker.settings.altering import BrokerConfig
from kbroker.share.persister import InitializeRequest, TopicPartition

WITHOUT_PLUGINS = """
import sys
from importlib import metadata

entry_points = metadata.entry_points
metadata.entry_points = lambda **wanted: metadata.EntryPoints(
    each for each in entry_points(**wanted) if each.dist.name == "kbroker"
)
from kbroker import plugins
from kbroker.cli import run

plugins._targets = lambda path: {}

sys.exit(run(sys.argv[1:]))
"""
LOCKS = {".lock", "lock.mdb"}
INSTALL = "install the plugin {0} (in a checkout of kbroker: pip install ./plugins/{0})"


def kbroker(*arguments: str | Path) -> tuple[int, str, str]:
    """A command where only kbroker is installed: its exit code, stdout and stderr."""
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_PLUGINS, *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    return ended.returncode, ended.stdout, ended.stderr


def contents(directory: Path) -> dict[Path, bytes]:
    """Of all files but those that only say which process has the directory open."""
    files = [path for path in sorted(directory.rglob("*")) if path.is_file() and path.name not in LOCKS]
    return {path: path.read_bytes() for path in files}


def written(data_dir: Path, engine: str, persister: str = "default") -> dict[Path, bytes]:
    """A stopped broker's directory with a topic, a group and its share state."""

    async def write() -> None:
        config = BrokerConfig({"kbroker.persister": persister})
        options = StartOptions(
            data_dir=data_dir, storage=engine, state_storage=engine, config=config, listen=("127.0.0.1", 9092)
        )
        async with open_broker(options) as broker:
            topic = await broker.topics.create("orders", 1, {})
            key = TopicPartition(topic.topic_id, 0)
            (result,) = await broker.persister.initialize("workers", [InitializeRequest(key, 1, 0)])
            assert result.code is ErrorCode.none
            group = GroupKey(RecordType.SHARE_GROUP_METADATA, "workers").encode()
            await broker.state_commits.commit(
                [(group, ShareGroupMetadata(epoch=1, metadata_hash=0).encode())]
            )

    trio.run(write)
    return contents(data_dir)


@pytest.mark.parametrize("engine", ["segment", "lmdb"])
def test_a_start_without_the_persister(tmp_path: Path, engine: str) -> None:
    data, install = tmp_path / "data", INSTALL.format("kbroker-control-records")
    before = written(data, engine, "control-records")
    start = ("start", "--listen", "127.0.0.1:0", "--storage", engine, "--data-dir", data)
    assert kbroker(*start, "--config", "kbroker.persister=control-records") == (
        USAGE, "", f"kbroker: --config: persister 'control-records' is not installed: {install}\n",
    )  # fmt: skip
    assert contents(data) == before
    code, out, err = kbroker(*start)
    assert (code, out, len(err.splitlines())) == (DATA_DIRECTORY, "", 1), err
    assert f"kbroker.persister=control-records, and default would not find it: {install}, start with" in err
    assert contents(data) == before


def test_tools_do_without_the_persister(tmp_path: Path) -> None:
    before = written(tmp_path / "data", "segment", "control-records")
    code, out, err = kbroker("storage", "inspect", tmp_path / "data", "--check", "--json")
    assert (code, err) == (OK, "")
    assert json.loads(out)["problems"] == []
    assert contents(tmp_path / "data") == before


def test_an_engine(tmp_path: Path) -> None:
    """A start, and a tool that reads a stopped broker's files."""
    data, install = tmp_path / "data", INSTALL.format("kbroker-sqlite")
    before = written(data, "sqlite")
    start = kbroker("start", "--listen", "127.0.0.1:0", "--storage", "sqlite", "--data-dir", data)
    assert start == (
        USAGE, "", f"kbroker: --storage: storage engine 'sqlite' is not installed: {install}\n",
    )  # fmt: skip
    assert kbroker("storage", "inspect", data) == (
        DATA_DIRECTORY, "", f"kbroker: storage engine 'sqlite' is not installed: {install}\n",
    )  # fmt: skip
    assert contents(data) == before
