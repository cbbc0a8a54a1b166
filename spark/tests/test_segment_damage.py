"""Segment files that were truncated or overwritten: data proven to have existed is reported as
missing, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.storage.segment.index import DATA, INDEX
from kbroker.storage.segment.recovery import CLEAN_SHUTDOWN
from kbroker.storage.segment.segment import FOLLOWS
from kbroker_spark.data import DataDir, reading
from kbroker_spark.lookup import look
from kbroker_spark.offsets import TopicPartition
from kbroker_spark.options import Subscribe
from spark.tests.stored import Stored, batch, records, writing

T = TopicPartition("t", 0)


def segments_of(path: Path) -> list[Path]:
    (log,) = (each for each in (path / "log-segment").iterdir() if each.is_dir())
    return sorted(each for each in log.iterdir() if each.name.isdigit())


def fill(data: Stored) -> None:
    """Segments of a few batches of ten records; all but the last are sealed by that many syncs."""
    topic_id = data.topic("t")
    data.append(topic_id, 0, *(batch(records(10), offset) for offset in range(0, 1000, 10)))


def damage(path: Path) -> list[tuple[int, int]]:
    """As seen by a process that has not opened the files before."""
    DataDir.open(path).close()
    with reading(path) as directory:
        return list(look(directory, Subscribe(("t",)), with_damage=True)[T].damage)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with writing(tmp_path) as data:
        fill(data)
    assert damage(tmp_path) == []
    sealed = [(each / INDEX).exists() for each in segments_of(tmp_path)]
    assert sealed == [True] * (len(sealed) - 1) + [False]
    return tmp_path


def cut(segment: Path, size: int) -> None:
    content = (segment / DATA).read_bytes()
    (segment / DATA).write_bytes(content[:size])


def test_a_sealed_segment_that_was_cut_misses_its_end(path: Path) -> None:
    _, second, third, *_ = segments_of(path)
    cut(second, 700)
    ((first, end),) = damage(path)
    assert int(second.name) < first < end == int(third.name)


def test_a_hole_that_was_there_before_is_none(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        topic_id = data.topic("t")
        data.append(topic_id, 0, *(batch(records(100), offset) for offset in range(0, 10_000, 1000)))
    assert len(segments_of(tmp_path)) > 2
    assert damage(tmp_path) == []


def test_the_active_segment_after_an_orderly_stop(path: Path) -> None:
    last = segments_of(path)[-1]
    cut(last, 10)
    assert damage(path) == [(int(last.name), 1000)]
    (path / "log-segment" / CLEAN_SHUTDOWN).unlink()
    assert damage(path) == []


def test_an_unsealed_segment_with_later_ones_behind_it(path: Path) -> None:
    _, second, third, *_ = segments_of(path)
    for each in (second / INDEX).iterdir():
        each.unlink()
    (second / INDEX).rmdir()
    cut(second, 10)
    ((first, end), *_) = damage(path)
    assert first == int(second.name)
    assert end > int(third.name)


def test_a_checkpoint_proves_what_was_on_disk(tmp_path: Path) -> None:
    with writing(tmp_path, checkpoint_bytes="1") as data:
        fill(data)
        last = segments_of(tmp_path)[-1]
        assert damage(tmp_path) == []
        cut(last, 10)
        ((first, end),) = damage(tmp_path)
        assert first == int(last.name)
        assert first < end <= 1000


def test_the_tail_that_a_crash_leaves_is_none(tmp_path: Path) -> None:
    """A segment was created, but nothing proves that the previous one ever reached the disk
    whole."""
    with writing(tmp_path) as data:
        fill(data)
        last = segments_of(tmp_path)[-1]
        behind = last.with_name(f"{1000:020}")
        behind.mkdir()
        (behind / DATA).write_bytes(bytes(100))
        (behind / FOLLOWS).write_text("1010")
        assert damage(tmp_path) == []
