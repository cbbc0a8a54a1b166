"""The store of the pipeline's tables: commits that appear completely or not at all, whenever a
crash happens, and folders that are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kbroker_pipeline.exits import CommandFailed, Exit
from kbroker_pipeline.frames import table_of
from kbroker_pipeline.store import Store, number_name, opened, partition_of, write_arrow

JOB, CLUSTER = "job", "a-cluster"


class Killed(BaseException):
    """Simulates the end of the process."""


def rows(number: int) -> list[dict[str, Any]]:
    return [
        {"date": f"2026-03-0{day}", "topic": topic, "offset": number}
        for day in (1, 2)
        for topic in ("orders", "7")
    ]


def commit(store: Store, number: int) -> None:
    name = store.next_name()
    folder = store.stage(name)
    write_arrow(table_of(rows(number)), folder / "t")
    write_arrow(table_of(rows(number)[:1]), folder / "u")
    store.decide(name, {"number": number})


def content(root: Path) -> dict[str, list[tuple[str, str, int]]]:
    """All rows in the tables' folders, as any reader sees them."""
    found: dict[str, list[tuple[str, str, int]]] = {}
    for path in sorted([*(root / "t").rglob("*.parquet"), *(root / "u").rglob("*.parquet")]):
        offsets = pq.ParquetFile(path).read()["offset"].to_pylist()
        found.setdefault(path.relative_to(root).parts[0], []).extend(
            (*partition_of(path), offset) for offset in offsets
        )
    return {table: sorted(each) for table, each in found.items()}


def expected(numbers: int) -> dict[str, list[tuple[str, str, int]]]:
    every = [row for number in range(numbers) for row in rows(number)]
    firsts = [rows(number)[0] for number in range(numbers)]
    tables = {"t": every, "u": firsts} if numbers else {}
    return {
        table: sorted((row["date"], row["topic"], row["offset"]) for row in each)
        for table, each in tables.items()
    }


def test_commits_add_up(tmp_path: Path) -> None:
    for number in range(3):
        with opened(tmp_path / "out", JOB, CLUSTER) as store:
            last = store.last()
            assert (last.facts["number"] if last else -1) == number - 1
            commit(store, number)
    assert content(tmp_path / "out") == expected(3)


@pytest.mark.parametrize("call", ["rename", "replace", "mkdir"])
def test_a_crash_anywhere_leaves_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Killed at every call of one kind that a commit makes, in turn, and again while the next run
    makes up for it."""
    outcomes = set()
    for fatal in range(40):
        root = tmp_path / str(fatal)
        with opened(root, JOB, CLUSTER) as store:
            commit(store, 0)
        calls = killing(monkeypatch, call, fatal)
        try:
            with opened(root, JOB, CLUSTER) as store:
                commit(store, 1)
        except Killed:
            pass
        else:
            assert fatal > 0
            monkeypatch.undo()
            break
        calls(1)
        with suppress(Killed), opened(root, JOB, CLUSTER):
            pass
        monkeypatch.undo()
        with opened(root, JOB, CLUSTER) as store:
            numbers = len(store.names())
            assert content(root) == expected(numbers), f"killed at {call} number {fatal}"
            assert not list((root / "_staging" / JOB).iterdir())
        outcomes.add(numbers)
    else:
        pytest.fail("a commit does not make that many calls")
    assert outcomes <= {1, 2}
    assert outcomes == {1, 2} or call != "rename"


def killing(monkeypatch: pytest.MonkeyPatch, name: str, fatal: int) -> Callable[[int], None]:
    """From now on call number `fatal` of a method of Path ends the process before it does anything.
    Returns a function that sets another number."""
    left = [fatal]
    real = getattr(Path, name)

    def counted(self: Path, *args: Any, **kwargs: Any) -> Any:
        if left[0] == 0:
            left[0] = -1
            raise Killed
        left[0] -= 1
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Path, name, counted)
    return lambda number: left.__setitem__(0, number)


def test_one_run_at_a_time(tmp_path: Path) -> None:
    with opened(tmp_path / "out", JOB, CLUSTER), pytest.raises(CommandFailed, match="another job is running"):
        opened(tmp_path / "out", JOB, CLUSTER).__enter__()
    with opened(tmp_path / "out", JOB, CLUSTER), opened(tmp_path / "out", "other", CLUSTER) as other:
        assert other.names() == []


def test_other_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    (tmp_path / "file").write_text("")
    with opened(tmp_path / "out", JOB, CLUSTER):
        pass
    newer = tmp_path / "newer"
    newer.mkdir()
    (newer / "pipeline.json").write_text(json.dumps({"format_version": 99, "cluster_id": CLUSTER}))
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "pipeline.json").write_text("{")
    for folder, cluster, text, code in (
        ("mine", CLUSTER, "contains files that are not tables", Exit.USAGE),
        ("file", CLUSTER, "is not a directory", Exit.USAGE),
        ("out", "another", "tables of cluster a-cluster", Exit.USAGE),
        ("newer", CLUSTER, "use a newer", Exit.REFUSED),
        ("broken", CLUSTER, "cannot be read", Exit.REFUSED),
    ):
        with pytest.raises(CommandFailed, match=text) as refused:
            opened(tmp_path / folder, JOB, cluster).__enter__()
        assert refused.value.exit_code == code


def test_a_missing_file_of_a_commit_is_told(tmp_path: Path) -> None:
    with opened(tmp_path, JOB, CLUSTER) as store:
        commit(store, 0)
        (store._staging / number_name(0)).mkdir()
        for path in (tmp_path / "t").rglob("*.parquet"):
            path.unlink()
        with pytest.raises(CommandFailed, match="is missing although its commit"):
            store.recover()


def test_forgetting_commits_keeps_rows(tmp_path: Path) -> None:
    with opened(tmp_path, JOB, CLUSTER) as store:
        for number in range(4):
            commit(store, number)
        store.forget(2)
        assert store.names() == [number_name(2), number_name(3)]
        commit(store, 4)
    assert content(tmp_path) == expected(5)


def test_types_do_not_depend_on_nulls() -> None:
    empty = table_of(
        [
            {
                "date": "2026-01-01",
                "topic": "t",
                "group": None,
                "partition": 0,
                "oldest_ms": None,
                "backlog": None,
            }
        ]
    )
    full = table_of(
        [{"date": "2026-01-01", "topic": "t", "group": "g", "partition": 0, "oldest_ms": 5, "backlog": 1}]
    )
    assert empty.schema == full.schema
    assert full.schema.field("partition").type == pa.int32()
