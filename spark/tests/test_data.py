"""A data directory opened by the engines' readers: topics, bounds, batches of a range, and refusals
in one line."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.formats.batches import iter_headers
from kbroker.formats.state import TopicKey, TopicState
from kbroker_spark.data import TopicInfo, bounds, one_line, read_range, reading, topics
from kbroker_spark.errors import DataLoss, SourceError
from kbroker_spark.offsets import Bounds
from spark.tests.stored import Stored, batch, describe, records, writing
from tests.brokers import DURABLE_ENGINES


def fill(data: Stored) -> TopicInfo:
    """Offsets 0 to 99 in batches of ten, in several segments."""
    topic_id = data.topic("t", retention_ms="7")
    data.append(topic_id, 0, *(batch(records(10), offset) for offset in range(0, 100, 10)))
    return TopicInfo("t", topic_id, 1, 5, {"retention.ms": "7"})


def base_offsets(chunks: list[list[memoryview]]) -> list[int]:
    return [header.base_offset for views in chunks for view in views for _, header in iter_headers(view)]


@pytest.mark.parametrize("engine", DURABLE_ENGINES)
def test_topics_bounds_and_batches(tmp_path: Path, engine: str) -> None:
    with writing(tmp_path, engine) as data:
        topic = fill(data)
        data.topic("gone", state=TopicState.DELETING)
        data.topic("empty", partitions=2)
    with reading(tmp_path) as found:
        logs, state = found.logs(), found.state()
        assert [each.name for each in topics(state)] == ["empty", "t"]
        assert topics(state)[1] == topic
        assert bounds(logs, state, topic, 0) == Bounds(0, 100)
        assert bounds(logs, state, topics(state)[0], 1) == Bounds(0, 0)
        assert base_offsets(list(read_range(logs, topic.topic_id, 0, 25, 60, 1000))) == [20, 30, 40, 50]
        assert list(read_range(logs, topic.topic_id, 0, 25, 25)) == []


@pytest.mark.parametrize("engine", DURABLE_ENGINES)
def test_what_a_live_broker_writes_is_seen_by_the_next_look(tmp_path: Path, engine: str) -> None:
    with writing(tmp_path, engine) as data:
        topic = fill(data)
        with reading(tmp_path) as found:
            assert bounds(found.logs(), found.state(), topic, 0) == Bounds(0, 100)
        data.append(topic.topic_id, 0, batch(records(5), 100))
        data.log_start(topic.topic_id, 0, 37)
        with reading(tmp_path) as found:
            assert bounds(found.logs(), found.state(), topic, 0) == Bounds(37, 105)
            assert base_offsets(list(read_range(found.logs(), topic.topic_id, 0, 95, 105))) == [90, 100]


def test_copies_are_given_back_when_the_work_ends(tmp_path: Path) -> None:
    with writing(tmp_path, "rocksdb") as data:
        topic = fill(data)
        readers = tmp_path / "log-rocksdb" / "readers"
        with reading(tmp_path) as found:
            found.logs().bounds(topic.log(0))
            assert len(list(readers.iterdir())) == 1
            with reading(tmp_path) as again:
                assert again is found
            assert len(list(readers.iterdir())) == 1
        assert list(readers.iterdir()) == []


def test_readers_are_kept_until_the_directory_is_another_one(tmp_path: Path) -> None:
    with writing(tmp_path / "a") as data:
        topic = fill(data)
    with reading(tmp_path / "a") as found:
        logs = found.logs()
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with reading(tmp_path / "b") as found:
        assert found.logs() is logs
    describe(tmp_path / "a", cluster_id="B" * 22)
    with reading(f"file://{tmp_path}/a") as found:
        assert found.logs() is not logs
        assert found.logs().bounds(topic.log(0)) == (0, 100)


@pytest.mark.parametrize("engine", ["lmdb", "segment"])
def test_few_directories_stay_open(tmp_path: Path, engine: str) -> None:
    for number in range(12):
        path = tmp_path / str(number)
        with writing(path, engine) as data:
            topic = fill(data)
        with reading(path) as found:
            assert bounds(found.logs(), found.state(), topic, 0) == Bounds(0, 100)


@pytest.mark.parametrize("engine", DURABLE_ENGINES)
def test_a_backup_that_was_put_in_place(tmp_path: Path, engine: str) -> None:
    place, backup = tmp_path / "data", tmp_path / "backup"
    with writing(place, engine) as data:
        topic = fill(data)
    shutil.copytree(place, backup)
    with writing(place, engine) as data:
        data.append(topic.topic_id, 0, batch(records(10), 100))
    with reading(place) as found:
        assert bounds(found.logs(), found.state(), topic, 0) == Bounds(0, 110)
    shutil.rmtree(place)
    backup.rename(place)
    with reading(place) as found:
        assert bounds(found.logs(), found.state(), topic, 0) == Bounds(0, 100)


def test_holes_are_no_loss(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        topic_id = data.topic("t")
        data.append(topic_id, 0, batch(records(10), 100), batch(records(10), 500), batch(records(10), 900))
    with reading(tmp_path) as found:
        assert base_offsets(list(read_range(found.logs(), topic_id, 0, 105, 905, 1))) == [100, 500, 900]
        assert base_offsets(list(read_range(found.logs(), topic_id, 0, 200, 600, 1))) == [500]
        assert list(read_range(found.logs(), topic_id, 0, 200, 300)) == []


def test_what_retention_takes_while_it_is_read_is_lost(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        topic = fill(data)
        data.append(topic.topic_id, 0, *(batch(records(100), offset) for offset in range(100, 2000, 100)))
        with reading(tmp_path) as found:
            chunks = read_range(found.logs(), topic.topic_id, 0, 0, 2000, 1, name="t-0")
            assert base_offsets([next(chunks)]) == [0]
            data.logs.trim(topic.log(0), 1500)
            start = data.logs.bounds(topic.log(0)).start_offset
            assert start > 10
            with pytest.raises(
                DataLoss, match=f"offsets 10 to {start - 1} of t-0 are gone, its log begins at {start}"
            ) as caught:
                list(chunks)
            assert caught.value.resume == start
            with pytest.raises(DataLoss, match="offsets 0 to 9 of t-0 are gone") as caught:
                list(read_range(found.logs(), topic.topic_id, 0, 0, 10, name="t-0"))
            assert caught.value.resume is None


def test_an_end_that_is_not_there_any_more_is_lost(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        topic = fill(data)
        with reading(tmp_path) as found:
            chunks = read_range(found.logs(), topic.topic_id, 0, 40, 100, 1, name="t-0")
            assert base_offsets([next(chunks)]) == [40]
            data.logs.truncate(topic.log(0), 60)
            with pytest.raises(
                DataLoss, match="offsets 60 to 99 of t-0 are not there, its log ends at 60"
            ) as caught:
                list(chunks)
            assert caught.value.resume is None


def test_a_topic_that_is_deleted_while_it_is_read_is_lost(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        topic = fill(data)
        with reading(tmp_path) as found:
            chunks = read_range(found.logs(), topic.topic_id, 0, 0, 100, 1, name="t-0")
            next(chunks)
            data.logs.drop(topic.log(0))
            with pytest.raises(DataLoss, match="t-0 is gone, with its offsets 10 to 99"):
                list(chunks)


def refusal(path: str | os.PathLike[str]) -> str:
    def read() -> None:
        with reading(path) as found:
            for log in found.logs().logs():
                found.logs().bounds(log)
            topics(found.state())

    with pytest.raises(SourceError) as caught:
        read()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_directories_that_cannot_be_read(tmp_path: Path) -> None:
    assert refusal(tmp_path / "no") == f"there is no directory {tmp_path}/no: give the --data-dir of a broker"
    assert refusal(tmp_path) == f"{tmp_path} has no kbroker.json: no broker has used it yet"
    assert "hdfs://there/data is not a local path" in refusal("hdfs://there/data")
    assert "contains a NUL character" in refusal("a\0b")
    (tmp_path / "file").write_text("")
    assert f"cannot use {tmp_path}/file (Not a directory)" in refusal(tmp_path / "file")
    assert "is not a kbroker data directory" in refusal(tmp_path)
    describe(tmp_path, format_version=9)
    assert "was written by a newer kbroker (format 9, this one knows 5): use that version" in refusal(
        tmp_path
    )
    describe(tmp_path, log_engine="tape", state_engine="tape")
    line = (
        f"{tmp_path} was written by an engine that is not available here: unknown storage engine 'tape': "
        "installed are "
    )
    assert refusal(tmp_path).startswith(line)
    describe(tmp_path, log_engine="memory", state_engine="memory")
    assert "the engine memory, which keeps nothing on disk" in refusal(tmp_path)
    describe(tmp_path)
    assert refusal(tmp_path).startswith(
        f"{tmp_path}/log-segment is missing: the data directory was copied in part"
    )
    (tmp_path / "kbroker.json").write_text("{")
    assert "kbroker.json is damaged (it is not JSON): restore it" in refusal(tmp_path)


@pytest.mark.parametrize("engine", ["lmdb", "rocksdb", "sqlite"])
@pytest.mark.parametrize("kind", ["log", "state"])
def test_databases_that_were_cut_or_overwritten(tmp_path: Path, engine: str, kind: str) -> None:
    with writing(tmp_path, engine) as data:
        fill(data)
    for path in (tmp_path / f"{kind}-{engine}").rglob("*"):
        if path.is_file() and "lock" not in path.name.lower() and "redo" not in path.parts:
            path.write_bytes(path.read_bytes()[:100] + b"\xff" * 50)
    assert str(tmp_path) in refusal(tmp_path)


@pytest.mark.parametrize("kind", ["log", "state"])
def test_an_lmdb_file_that_is_gone_or_empty(tmp_path: Path, kind: str) -> None:
    with writing(tmp_path, "lmdb") as data:
        fill(data)
    path = tmp_path / f"{kind}-lmdb" / "data.mdb"
    path.write_bytes(b"")
    assert (
        refusal(tmp_path)
        == f"{path.parent}: cannot open the LMDB environment: data.mdb is empty: restore a backup"
    )
    path.unlink()
    assert (
        refusal(tmp_path)
        == f"{path.parent}: cannot open the LMDB environment: data.mdb is missing: restore a backup"
    )


def test_a_state_that_is_gone(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        fill(data)
    shutil.rmtree(tmp_path / "state-segment")
    (tmp_path / "state-segment").mkdir()
    line = (
        "state-segment is empty beside logs of topics: the data directory was copied in part, restore a "
        "backup"
    )
    assert refusal(tmp_path) == f"{tmp_path}/{line}"


def test_a_state_that_holds_nonsense(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        key = TopicKey(fill(data).topic_id).encode()
        data.state.write([(key, b"[]")])
    assert f"the state's key {key.hex()} cannot be read" in refusal(tmp_path)


@pytest.mark.parametrize("max_bytes", [1, 1 << 20])
@pytest.mark.parametrize("offset", [0, 9, 25, 31, 1 << 40, -5])
@pytest.mark.parametrize("number", [1, 3])
def test_an_offset_that_is_not_under_the_crc(
    tmp_path: Path, number: int, offset: int, max_bytes: int
) -> None:
    with writing(tmp_path) as data:
        topic = fill(data)
        data.append(topic.topic_id, 0, *(batch(records(100), offset) for offset in range(100, 1000, 100)))
    file = tmp_path / "log-segment" / f"{topic.topic_id}-0" / f"{0:020}" / "data.ninja"
    content = bytearray(file.read_bytes())
    at = number * (12 + int.from_bytes(content[8:12], "big"))
    assert content[at : at + 8] == (number * 10).to_bytes(8, "big")
    content[at : at + 8] = offset.to_bytes(8, "big", signed=True)
    file.write_bytes(content)
    with reading(tmp_path) as found:
        chunks = read_range(found.logs(), topic.topic_id, 0, 0, 1000, max_bytes, name="t-0")
        with pytest.raises(
            SourceError,
            match=r"^t-0 is damaged: after offset \d+ there is a record batch with a wrong length or offset",
        ):
            list(chunks)


def as_somebody_else(work: Callable[[], str]) -> str:
    """The result of `work` in a process without root's rights, or of the user who runs the
    tests."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        try:
            if os.geteuid() == 0:
                os.setuid(65534)
            os.write(writes, work().encode())
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as answer:
        text = answer.read().decode()
    os.waitpid(child, 0)
    return text


@pytest.mark.parametrize("engine", DURABLE_ENGINES)
def test_directories_that_may_not_be_read(engine: str) -> None:
    with tempfile.TemporaryDirectory() as home:
        path = Path(home)
        with writing(path, engine) as data:
            fill(data)
        for each in (path, *path.rglob("*")):
            each.chmod(0o755 if each.is_dir() else 0o644)
        directory = path / f"log-{engine}"
        directory.chmod(0)
        try:
            text = as_somebody_else(lambda: refusal(path))
        finally:
            directory.chmod(0o755)
    assert str(directory) in text
    assert "permission" in text.lower()


def test_errors_of_the_system_name_their_file() -> None:
    with (
        pytest.raises(
            SourceError, match=r"^cannot read /data/x \(permission denied\): give this user read access$"
        ),
        one_line("/data"),
    ):
        raise PermissionError(13, "Permission denied", "/data/x")
    with pytest.raises(SourceError, match=r"^cannot read /data: Input/output error$"), one_line("/data"):
        raise OSError(5, "Input/output error")
