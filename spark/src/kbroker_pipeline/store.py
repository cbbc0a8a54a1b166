"""The tables of the jobs: Parquet files that are added in atomic commits, even if a process is
killed.

    OUT/
        pipeline.json                                      format version, and the cluster whose
                                                           records these are
        archive/date=2026-03-01/topic=orders/*.parquet     a table; others, such as queue_health and
                                                           dead_letters, are beside it
        reports/archive.html
        _commits/archive/000000012.json                    the files that a commit added, and facts
                                                           that its job needs in the next run
        _staging/archive/000000012/...                     files of a commit that is not decided
                                                           yet, or not in place yet
        _checkpoints/archive/                              Spark's checkpoint of the streaming query
        _locks/archive                                     locked (flock) by the running job

A commit is decided when its file is renamed into `_commits`. Only then are its files renamed into
the tables. After a crash, the next run first moves the remaining files of decided commits, and
removes those of undecided ones. Readers need not know this: the files in a table's folders are its
content, with each row once. Only one run of a job works at a time, and jobs do not share tables.

Files are synced before the commit is decided, so commits are atomic across power cuts too. Only
local file systems are supported, as for the data directory. This module must not know Spark, nor
any single table.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote

from kbroker_pipeline.exits import CommandFailed, Exit

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT_VERSION: Final = 1
DESCRIPTION: Final = "pipeline.json"
PARTITIONED_BY: Final = ("date", "topic")
_TEMPORARY: Final = ".tmp"
Facts: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Commit:
    """`files`: from table to the paths of its files within the table. `facts`: JSON data of the
    job."""

    name: str
    files: Mapping[str, Sequence[str]]
    facts: Facts


class Store:
    """The commits and tables of one job; obtained with `opened`."""

    def __init__(self, root: Path, job: str) -> None:
        self.root, self.job = root, job
        self._commits = root / "_commits" / job
        self._staging = root / "_staging" / job

    @property
    def checkpoint(self) -> Path:
        return self.root / "_checkpoints" / self.job

    @property
    def report(self) -> Path:
        return self.root / "reports" / f"{self.job}.html"

    def table(self, name: str) -> Path:
        return self.root / name

    # --- existing commits ---

    def names(self) -> list[str]:
        """The names of all commits, oldest first."""
        return sorted(path.stem for path in self._commits.glob("*.json"))

    def commit(self, name: str) -> Commit | None:
        try:
            return Commit(**json.loads((self._commits / f"{name}.json").read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None

    def last(self) -> Commit | None:
        names = self.names()
        return self.commit(names[-1]) if names else None

    def rows_of_last(self, table: str) -> list[dict[str, Any]]:
        """The rows that the last commit added to a small table, with `date` and `topic`."""
        import pyarrow.parquet as pq

        last, found = self.last(), []
        for file in last.files.get(table, ()) if last is not None else ():
            path = self.table(table) / file
            date, topic = partition_of(path)
            found += [
                {"date": date, "topic": topic, **row} for row in pq.ParquetFile(path).read().to_pylist()
            ]
        return found

    def next_name(self) -> str:
        last = self.last()
        return number_name(int(last.name) + 1 if last else 0)

    # --- new commits ---

    def stage(self, name: str) -> Path:
        """An empty folder for the files of a commit: TABLE/date=D/topic=T/ANYTHING.parquet. Files
        staged earlier under this name are removed."""
        folder = self._staging / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def staged(self, name: str) -> Iterator[tuple[str, Path]]:
        """The staged Parquet files: table and path, in a fixed order."""
        folder = self._staging / name
        for path in sorted(folder.rglob("*.parquet")):
            yield path.relative_to(folder).parts[0], path

    def decide(self, name: str, facts: Facts) -> Commit:
        """Commits the staged files: they are durable and in the tables on return. After a crash
        during the call, recovery adds either all of them or none."""
        files: dict[str, list[str]] = {}
        folder = self._staging / name
        for number, (table, path) in enumerate(self.staged(name)):
            final = path.with_name(f"{self.job}-{name}-{number:05}.parquet")
            path.rename(final)
            sync(final)
            files.setdefault(table, []).append(str(final.relative_to(folder / table)))
        commit = Commit(name, files, dict(facts))
        self._commits.mkdir(parents=True, exist_ok=True)
        _write_whole(self._commits / f"{name}.json", asdict(commit))
        self._publish(commit)
        return commit

    def _publish(self, commit: Commit) -> None:
        folder = self._staging / commit.name
        for table, files in commit.files.items():
            for file in files:
                source, target = folder / table / file, self.table(table) / file
                if source.exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    source.rename(target)
                elif not target.exists():
                    raise CommandFailed(
                        f"{target} is missing although its commit {commit.name} was decided: restore it",
                        Exit.REFUSED,
                    )
        shutil.rmtree(folder, ignore_errors=True)

    def recover(self) -> None:
        """Cleans up after a crash: finishes decided commits and removes the staged files of
        others."""
        for folder in sorted(self._staging.glob("*")):
            commit = self.commit(folder.name)
            if commit is None:
                shutil.rmtree(folder)
            else:
                self._publish(commit)
        for leftover in self._commits.glob(f"*{_TEMPORARY}"):
            leftover.unlink()

    def forget(self, most: int) -> None:
        """Removes the commit files of all but the last `most` commits. Their rows stay in the
        tables."""
        for name in self.names()[:-most]:
            (self._commits / f"{name}.json").unlink()


@contextmanager
def opened(root: Path, job: str, cluster_id: str) -> Iterator[Store]:
    """The store of a job, recovered, and locked until the block ends. Raises CommandFailed if
    another run of the job is active, or if the folder belongs to another cluster, has a newer
    format, or was not written by this pipeline."""
    root = root.absolute()
    _claim(root, cluster_id)
    lock = root / "_locks" / job
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandFailed(
                f"another {job} is running on {root}: wait for it, or choose another --out"
            ) from None
        store = Store(root, job)
        store.recover()
        yield store


def _claim(root: Path, cluster_id: str) -> None:
    description = root / DESCRIPTION
    if root.exists() and not root.is_dir():
        raise CommandFailed(f"{root} is not a directory: choose another --out", Exit.USAGE)
    if not description.exists():
        if root.exists() and any(
            path.name != "_locks" and _TEMPORARY not in path.name for path in root.iterdir()
        ):
            raise CommandFailed(
                f"{root} contains files that are not tables of this pipeline: choose another --out",
                Exit.USAGE,
            )
        root.mkdir(parents=True, exist_ok=True)
        _write_whole(description, {"format_version": FORMAT_VERSION, "cluster_id": cluster_id})
    try:
        found = json.loads(description.read_text(encoding="utf-8"))
        version, owner = int(found["format_version"]), str(found["cluster_id"])
    except (ValueError, KeyError, TypeError) as error:
        raise CommandFailed(
            f"{description} cannot be read ({error}): restore it, or choose another --out"
        ) from error
    if version > FORMAT_VERSION:
        raise CommandFailed(
            f"{root} has format {version}, but this version supports up to {FORMAT_VERSION}: "
            "use a newer kbroker-pipeline"
        )
    if owner != cluster_id:
        raise CommandFailed(
            f"{root} contains tables of cluster {owner}, not of {cluster_id}: choose another --out",
            Exit.USAGE,
        )


def write_arrow(table: pa.Table, folder: Path) -> None:
    """Writes rows as Parquet files to `folder` (from `Store.stage`), partitioned by their columns
    `date` (a string) and `topic`."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    keys = (
        table.select(PARTITIONED_BY)
        .group_by(PARTITIONED_BY)
        .aggregate([])
        .sort_by([(name, "ascending") for name in PARTITIONED_BY])
    )
    for key in keys.to_pylist():
        chosen = pc.and_(pc.equal(table["date"], key["date"]), pc.equal(table["topic"], key["topic"]))
        into = folder / f"date={key['date']}" / f"topic={quote(key['topic'], safe='')}"
        into.mkdir(parents=True)
        pq.write_table(table.filter(chosen).drop_columns(list(PARTITIONED_BY)), into / "rows.parquet")


def partition_of(path: Path) -> tuple[str, str]:
    """Date and topic of a file in a table."""
    return path.parent.parent.name.removeprefix("date="), path.parent.name.removeprefix("topic=")


def number_name(number: int) -> str:
    """A commit's name: numbers sort as text."""
    return f"{number:09}"


def _write_whole(path: Path, value: object) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}{_TEMPORARY}")
    temporary.write_text(json.dumps(value, separators=(",", ":")), encoding="utf-8")
    sync(temporary)
    temporary.replace(path)
    sync(path)


def sync(path: Path) -> None:
    """Syncs a file and its entry in the folder."""
    for each in (path, path.parent):
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
